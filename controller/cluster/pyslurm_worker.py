# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that calls pyslurm, on behalf of `controller.cluster.pyslurm`.

pyslurm keeps Python's global lock while it waits for slurmctld, and libslurm ends the process when it finds
no configuration: in the controller itself, a slurmctld that hangs would stop everything. So the calls are
made here, one at a time, and this process is killed when one takes too long.

It reads requests from standard input and writes answers to standard output: four bytes of length (little-
endian), then that many bytes of `marshal`. A request is `(verb, *arguments)`; an answer `("ok", value)`,
`("error", slurm_error_number, text)` or `("fault", text)`. The first answer, unasked, says whether pyslurm
can be used. The process ends with its standard input.
"""

import ctypes
import marshal
import math
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO

from controller.cluster.raw import PREFIX, JobRecord, NodeRecord, trial_word

UNREADABLE = "(pyslurm cannot read it)"
"""Instead of a GRES text. It does not parse: that is reported, and the job or node counts as without GPUs."""

_ALLOCATED = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"}
)
HEADER_BYTES = 4
_SHOW_ALL_DETAIL = 3
_NO_CHANGE_IN_DATA = 1900
_NAMELESS_SECONDS = 60.0
"""For so long a user without a name is not asked for again: of jobs of a user that is gone, or while the name
service is slow, each look would wait for it."""
_MAX_USERS = 10_000
_users: dict[int, tuple[str, float]] = {}
"""The name, or the number where there is none, and until when (monotonic seconds) that holds."""
_whole_gpu: dict[tuple[int, int], bool] = {}


def _dependency(parts: Mapping[str, Any]) -> str:
    """As Slurm writes it; pyslurm drops the kind `singleton(unfulfilled)`."""
    words = [f"{kind}:{job}" for kind, jobs in parts.items() if isinstance(jobs, list) for job in jobs]
    return ("?" if parts.get("satisfy") == "any" else ",").join(words) or "singleton"


def _number(value: Any) -> int:
    """pyslurm gives None for unset and a string for unlimited."""
    return value if isinstance(value, int) else 0


def _user(uid: int) -> str:
    """A user's name; the number where there is none."""
    name, until = _users.get(uid, ("", -math.inf))
    if time.monotonic() < until:
        return name
    if len(_users) >= _MAX_USERS:
        _users.clear()
    try:
        _users[uid] = pwd.getpwuid(uid).pw_name, math.inf
    except KeyError:
        _users[uid] = str(uid), time.monotonic() + _NAMELESS_SECONDS  # the answer may have taken long
    return _users[uid][0]


def _text(job: Any, field: str) -> str:
    """A text that people choose. They may put any bytes there; pyslurm decodes strictly."""
    try:
        return getattr(job, field) or ""
    except UnicodeDecodeError:
        return "?"


def _memory_per_node_mib(job: Any, node_count: int) -> int:
    per_node = job.memory_per_node
    if per_node is not None:
        return _number(per_node)
    per_cpu = job.memory_per_cpu
    if per_cpu is not None:
        return _number(per_cpu) * _number(job.cpus) // node_count
    tres = job.allocated_tres or job.requested_tres
    memory = getattr(tres, "mem", None)
    return _number(getattr(memory, "count", 0)) // node_count


def _exit(job: Any) -> tuple[int, int]:
    """Exit code and signal. pyslurm takes 128 off codes from 128 on: 128 itself would look like success."""
    code, signal = _number(job.exit_code), _number(job.exit_code_signal)
    return (128 if job.state == "FAILED" and not code and not signal else code), signal


def _gres(record: Any, field: str) -> str:
    """A GRES request or configuration as text. pyslurm fails at what it does not expect there, such as the
    `--gres=gpu` of any user; that must cost one job or node, not the look at all of them."""
    try:
        return ",".join(f"{name}:{count}" for name, count in (getattr(record, field) or {}).items())
    except (IndexError, ValueError):
        return UNREADABLE


def _job(job: Any) -> JobRecord:
    min_nodes = _number(job.num_nodes)
    array_job_id = _number(job.array_id)
    array_tasks = job.array_tasks_waiting or ""
    task = job.array_task_id
    if not isinstance(task, int):  # pyslurm gives None for task 0 as well as for no task
        task = 0 if array_job_id and not array_tasks else -1
    exit_code, exit_signal = _exit(job)
    return JobRecord(
        id=job.id,
        uid=_number(job.user_id),
        user=_user(_number(job.user_id)),
        name=_text(job, "name"),
        account=job.account or "",
        partition=job.partition or "",
        qos=job.qos or "",
        state=(job.state,),
        reason=job.state_reason or "",
        priority=_number(job.priority),
        dependency=_dependency(job.dependencies) if job.dependencies else "",
        begin_time=_number(job.eligible_time),
        submit_time=_number(job.submit_time),
        start_time=_number(job.start_time),
        end_time=_number(job.end_time),
        request=_text(job, "admin_comment"),
        gres=_gres(job, "gres_per_node"),
        nodes=job.allocated_nodes or "",
        excluded_nodes=job.excluded_nodes or "",
        min_nodes=min_nodes,
        max_nodes=_number(job.max_nodes),
        cpus=_number(job.cpus),
        memory_per_node_mib=_memory_per_node_mib(job, max(min_nodes, 1)),
        restarts=_number(job.requeue_count),
        exit_code=exit_code,
        exit_signal=exit_signal,
        array_job_id=array_job_id,
        array_task_id=task,
        array_tasks=array_tasks,
        array_limit=_number(job.array_tasks_parallel),
        trial=trial_word(_text(job, "comment")),
        deadline=_number(job.deadline),
        time_limit_minutes=_number(job.time_limit),
        may_requeue=bool(job.is_requeueable),
    )


def _node(node: Any) -> NodeRecord:
    return NodeRecord(
        name=node.name,
        address=node.address or node.hostname or "",
        state=tuple((node.state or "").split("+")),
        reason=node.reason or "",
        gres=_gres(node, "configured_gres"),
        gres_used="",
        cpus=_number(node.effective_cpus),
        memory_mib=max(_number(node.real_memory) - _number(node.memory_reserved_for_system), 0),
        memory_allocated_mib=_number(node.allocated_memory),
        features=tuple(node.active_features or ()),
    )


def _holds_whole_gpus(job: Any, key: tuple[int, int]) -> bool:
    """Whether an allocated job has GRES `gpu`. What a job has does not change while it runs."""
    if key not in _whole_gpu:
        tres = job.allocated_tres
        names = list(tres.gres) if tres is not None else []
        # Where this cannot be read, what Slurm accounts to the job (above) must do.
        names += [item.removeprefix("gres/") for item in _gres(job, "gres_per_node").split(",")]
        _whole_gpu[key] = any(name == "gpu" or name.startswith("gpu:") for name in names)
    return _whole_gpu[key]


class _Asked:
    """Asks slurmctld whether any job has changed since it was asked last. It says no in less than a
    millisecond, however many jobs there are; pyslurm always asks for all of them."""

    def __init__(self, pyslurm: Any) -> None:
        """Raises OSError, AttributeError where the libslurm of pyslurm cannot be called."""
        # The symbols of a library that an extension module needs are found through that module.
        libslurm = ctypes.CDLL(pyslurm.api.__file__, use_errno=True)
        self._load, self._free = libslurm.slurm_load_jobs, libslurm.slurm_free_job_info_msg
        self._load.argtypes = [ctypes.c_long, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint16]
        self._free.argtypes = [ctypes.c_void_p]
        self._since = 0

    def unchanged(self) -> bool:
        """Whether no job has changed. False also where slurmctld does not answer."""
        answer = ctypes.c_void_p()
        if self._load(self._since, ctypes.byref(answer), _SHOW_ALL_DETAIL) != 0:
            return ctypes.get_errno() == _NO_CHANGE_IN_DATA
        # job_info_msg_t begins with last_backfill and last_update, slurmctld's time of the answer.
        self._since = ctypes.cast(answer, ctypes.POINTER(ctypes.c_long))[1]
        self._free(answer)
        return False


class _Jobs:
    """The jobs of the last answer: the next one says what is different."""

    def __init__(self) -> None:
        self._number, self._records, self._whole = 0, dict[int, JobRecord](), list[tuple[int, int]]()
        self._quiet = False
        """The last look found nothing new: it is worth asking before the next one."""
        self._asked: _Asked | None = None

    def load(self, pyslurm: Any, known: tuple[int, int] | None) -> tuple[Any, ...]:
        """Names of this answer and of the one that it adds to (None: to none), jobs that are new or differ,
        ids of those that are gone, and (id, start time) of each job that holds whole GPUs.

        Args:
            known: the answer that the caller has. If it is not the last one from here, all jobs are sent.
        """
        if known != (os.getpid(), self._number):
            known, self._records, self._quiet = None, {}, False
        before = self._records
        if not (self._quiet and self._unchanged(pyslurm)):
            self._records, self._whole = _all_jobs(pyslurm)
        changed = [tuple(job) for id_, job in self._records.items() if before.get(id_) != job]
        gone = [id_ for id_ in before if id_ not in self._records]
        self._quiet = known is not None and not changed and not gone
        self._number += 1
        return (os.getpid(), self._number), known, changed, gone, self._whole

    def _unchanged(self, pyslurm: Any) -> bool:
        try:
            self._asked = self._asked or _Asked(pyslurm)
        except (OSError, AttributeError):
            return False
        return self._asked.unchanged()


_jobs = _Jobs()


def _load(pyslurm: Any, known: tuple[int, int] | None) -> tuple[Any, ...]:
    """What `_Jobs` says, and the nodes."""
    nodes = [tuple(_node(node)) for node in _every(pyslurm.Nodes)]
    return (*_jobs.load(pyslurm, known), nodes)


def _every(kind: Any) -> Iterator[Any]:
    """All jobs, or nodes, of all clusters."""
    return chain.from_iterable(cluster.values() for cluster in kind.load().data.values())


def _all_jobs(pyslurm: Any) -> tuple[dict[int, JobRecord], list[tuple[int, int]]]:
    """Gandiva jobs, and (id, start time) of each job that holds whole GPUs."""
    jobs = {}
    whole = []
    for job in _every(pyslurm.Jobs):
        if _text(job, "admin_comment").startswith(PREFIX):
            jobs[job.id] = _job(job)
        if job.state in _ALLOCATED:
            key = (job.id, _number(job.start_time))
            if _holds_whole_gpus(job, key):
                whole.append(key)
    if len(_whole_gpu) > 100_000:
        _whole_gpu.clear()
    return jobs, whole


def _one_job(pyslurm: Any, job_id: int) -> tuple[Any, ...] | None:
    job = pyslurm.Job.load(job_id)
    if job.id == job_id:
        return tuple(_job(job))
    # The id of an array stands for all its tasks, and pyslurm takes the first it gets.
    return next((tuple(_job(each)) for each in _every(pyslurm.Jobs) if each.id == job_id), None)


def _bind(pyslurm: Any, job_id: int, gres: dict[str, int], nodes: list[str]) -> None:
    change = pyslurm.JobSubmitDescription(
        gres_per_node=gres,
        required_nodes=nodes,
        begin_time=1,  # slurmctld makes now out of any time in the past
    )
    pyslurm.Job(job_id).modify(change)


_VERBS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "job": _one_job,
    "bind": _bind,
    "release": lambda pyslurm, job_id: pyslurm.Job(job_id).release(),
    "suspend": lambda pyslurm, job_id: pyslurm.Job(job_id).suspend(),
    "resume": lambda pyslurm, job_id: pyslurm.Job(job_id).unsuspend(),
}


def framed(message: tuple[Any, ...]) -> bytes:
    """A message with its length before it."""
    body = marshal.dumps(message)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def _send(channel: BinaryIO, answer: tuple[Any, ...]) -> None:
    channel.write(framed(answer))
    channel.flush()


def _answer(pyslurm: Any, request: tuple[Any, ...]) -> tuple[Any, ...]:
    verb, *arguments = request
    try:
        return "ok", _VERBS[verb](pyslurm, *arguments)
    except pyslurm.RPCError as error:
        return "error", int(error.errno), str(error)
    except Exception as error:  # the parent decides; this process goes on
        return "fault", f"{type(error).__name__}: {error}"


def main() -> None:
    """Serve until standard input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # pyslurm and libslurm print; that must not get between the answers
    try:
        import pyslurm
    except Exception as error:
        _send(answers, ("fault", f"pyslurm cannot be used: {type(error).__name__}: {error}"))
        sys.exit(1)
    _send(answers, ("ok", str(pyslurm.__version__)))
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        request = marshal.loads(requests.read(int.from_bytes(header, "little")))
        _send(answers, _answer(pyslurm, request))


if __name__ == "__main__":
    main()
