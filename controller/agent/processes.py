# SPDX-License-Identifier: GPL-2.0-or-later
"""Which process belongs to which job, from /proc alone.

Slurm puts every process of a job into a control group whose path names the job:

    cgroup v1            …/slurm[_NODE]/uid_1000/job_12/step_0/task_0
    cgroup v2            …/system.slice/[NODE_]slurmstepd.scope/job_12/step_0/user/task_0
    cgroup v2, 26.05     …/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0      (SLUID, not job id)

(NODE where slurmd is built for several daemons per host.) For a SLUID the job id is taken from the title of
the slurmstepd of that folder, "slurmstepd: [12.batch]", which only root can set. A site without control
groups is left with SLURM_JOB_ID in the process's environment, which its owner can write: it counts only for
a job of the same user.
"""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.agent.files import text_of

MAX_READ_BYTES = 1 << 20
READ_BYTES = 1 << 16

_V1 = re.compile(r"/slurm(?:_(?P<node>[^/]+))?/uid_(?P<uid>\d{1,10})/job_(?P<job>\d{1,10})(?:/|$)")
_V2 = re.compile(
    r"/(?:(?P<node>[^/]+)_)?slurmstepd\.scope/(?:job_(?P<job>\d{1,10})|(?P<sluid>s[0-9A-Z]{13}))(?:/|$)"
)
_STEP = re.compile(
    r"(?:.*/)?(?:slurm(?:_[^/]+)?/uid_\d+/job_\d+/step_[^/]+"
    r"|(?:[^/]+_)?slurmstepd\.scope/[^/]+/step_[^/]+/user)(?=/|$)"
)
"""The control group that Slurm freezes to suspend a step; slurmstepd is outside."""
_FREEZE, _FREEZER_STATES = "cgroup.freeze", ("THAWED", "FROZEN")
# Users own control groups below their own slice and can give them any name.
_DELEGATED = re.compile(r"/user\.slice/|/user@\d+\.service/")
_STEPD_TITLE = re.compile(r"slurmstepd: \[(?P<job>\d{1,10})(?:\.(?P<step>[^\]]{0,40}))?\]")


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """What a control group's path says."""

    job_id: int | None
    sluid: str | None
    node: str | None


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that stays itself when its pid is used again."""

    pid: int
    start_time_ticks: int


def parse_cgroup(text: str) -> CgroupOwner | None:
    """The owner named by a /proc/PID/cgroup; None when the process is in no job's control group."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if _DELEGATED.search(path):
            continue
        if match := _V1.search(path):
            return CgroupOwner(int(match["job"]), None, match["node"])
        if match := _V2.search(path):
            job = match["job"]
            return CgroupOwner(int(job) if job else None, match["sluid"], match["node"])
    return None


def groups(text: str) -> Iterator[tuple[Sequence[str], str]]:
    """The control groups that a /proc/PID/cgroup lists: controllers (none: version 2) and path. Those outside
    our view of the hierarchy are left out."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/..") and (controllers or number == "0"):
            yield [] if number == "0" else controllers.split(","), path.lstrip("/")


class Processes:
    """The process table of a node. Every answer is of the moment: processes come and go."""

    def __init__(
        self,
        node: str,
        uid_of_job: Callable[[int], int | None],
        proc: Path = Path("/proc"),
        cgroup_mount: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        """`uid_of_job` says whose a job is, or None when it is not known on this node."""
        self._node = node
        self._uid_of_job = uid_of_job
        self._proc = str(proc)
        self._cgroup_mount = cgroup_mount
        self._job_of_sluid: dict[str, int] = {}

    def start_time_ticks(self, pid: int) -> int | None:
        """Field 22 of /proc/PID/stat; None when there is no such live process."""
        fields = self._stat(pid)
        return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])

    def alive(self, process: ProcessId) -> bool:
        """Whether it still runs and is the same process."""
        return self.start_time_ticks(process.pid) == process.start_time_ticks

    def uid(self, pid: int) -> int | None:
        """Real user id; None when there is no such process."""
        match = re.search(r"^Uid:\s+(\d+)", self._read(pid, "status") or "", re.MULTILINE)
        return int(match.group(1)) if match else None

    def job_of(self, pid: int) -> int | None:
        """The job that a process belongs to, on this node; None when it belongs to none, or has ended."""
        owner = parse_cgroup(self._read(pid, "cgroup") or "")
        if owner is not None:
            if owner.node is not None and owner.node != self._node:
                return None  # another slurmd on the same host
            if owner.job_id is not None:
                return owner.job_id
            if owner.sluid is not None and (found := self._job_of_folder(owner.sluid)) is not None:
                return found
        return self._job_by_environment(pid)

    def of_job(self, job_id: int) -> tuple[ProcessId, ...]:
        """The job's processes, without Slurm's own (which run as root)."""
        owner = self._uid_of_job(job_id)
        found = []
        for pid in self._pids():
            if self.job_of(pid) != job_id:
                continue
            # Only of root's processes does the name count: a user's can have any.
            if self.uid(pid) == 0 and (owner != 0 or self._comm(pid) == "slurmstepd"):
                continue
            start = self.start_time_ticks(pid)
            if start is not None:
                found.append(ProcessId(pid, start))
        return tuple(found)

    def launching(self, job_id: int) -> list[str]:
        """Steps of the job that are being started: Slurm's own process of each is here already, and none of
        the user's under it. Of one that has ended, Slurm's goes too. The extern step never has one."""
        steps: dict[int, str] = {}
        parents: set[int] = set()
        for pid in self._pids():
            fields = self._stat(pid)
            if fields is None or fields[0] in ("Z", "X"):
                continue
            if not self._is_slurms(pid):
                parents.add(int(fields[1]))
            elif (title := self._title(pid)) is not None and int(title["job"]) == job_id:
                steps[pid] = title["step"] or ""
        return sorted(
            step
            for pid, step in steps.items()
            if pid not in parents and step not in ("extern", "extern stepmgr")
        )

    def has_steps(self, job_id: int) -> bool:
        """Whether Slurm's own process of a step is here: slurmd starts no second copy of a job beside it."""
        titles = (self._title(pid) for pid in self._pids() if self._is_slurms(pid))
        return any(int(title["job"]) == job_id for title in titles if title is not None)

    def calls_the_driver(self, pid: int) -> bool:
        """Whether it is a process by which an agent makes driver calls (`checkpointing.driver_process`)."""
        arguments = (self._read(pid, "cmdline") or "").split("\0")
        return "checkpointing.driver_process" in arguments and self.uid(pid) == os.geteuid()

    def living(self, job_id: int) -> int:
        """How many processes look like the job's: those of Slurm itself and those that only their environment
        says so of are counted too. 0: nothing of it is here, whatever became of its control block."""
        return sum(self._looks_like(pid, job_id) for pid in self._pids())

    def maps(self, pid: int) -> str:
        """What is in the address space of a process, as in /proc/PID/maps; empty when it has ended."""
        return self._read(pid, "maps") or ""

    def halted(self, pid: int) -> str | None:
        """ "stopped" or "frozen" when the process cannot run now; None when it can, or has ended."""
        fields = self._stat(pid)
        if fields is None:
            return None
        if fields[0] in ("T", "t"):
            return "stopped"
        return "frozen" if self._frozen(pid) else None

    def send(self, processes: Sequence[ProcessId], number: signal.Signals) -> None:
        """Send a signal; a process that has ended meanwhile needs none, and who has its pid now gets none."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                self._send_one(process, number)

    def freeze(self, processes: Sequence[ProcessId], frozen: bool) -> None:
        """Freeze the steps of these processes as Slurm does, or let them run: unlike a stop, no signal of the
        job's owner undoes it. What has no control group of Slurm's stays as it is."""
        for file in {file for process in processes for file in self._freezers(process.pid) if file.is_file()}:
            with contextlib.suppress(OSError):
                file.write_text(str(int(frozen)) if file.name == _FREEZE else _FREEZER_STATES[frozen])

    def _send_one(self, process: ProcessId, number: signal.Signals) -> None:
        try:
            # Opened before the look: then it stands for the process that was looked at.
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            # Linux before 5.3 (RHEL 8) has no such call, nor has a Python that was made with its headers:
            # then the look just before must do.
            if self.alive(process):
                os.kill(process.pid, number)
            return
        try:
            if self.alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)

    def _pids(self) -> list[int]:
        with os.scandir(self._proc) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]

    def _read(self, pid: int, name: str) -> str | None:
        # Read a thousand times at a switch: without a file object and a Path it takes a third of the time.
        try:
            file = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = os.read(file, READ_BYTES)
            while len(data) < MAX_READ_BYTES and (more := os.read(file, READ_BYTES)):
                data += more
        except OSError:
            return None
        finally:
            os.close(file)
        return data.decode("utf-8", "replace")

    def _stat(self, pid: int) -> list[str] | None:
        """The fields of /proc/PID/stat from the third on (the second, the name, may contain anything)."""
        text = self._read(pid, "stat")
        if text is None or ")" not in text:
            return None
        fields = text[text.rindex(")") + 1 :].split()
        return fields if len(fields) > 19 and fields[19].isdecimal() else None

    def _looks_like(self, pid: int, job_id: int) -> bool:
        if self.job_of(pid) == job_id:
            return True
        title = self._title(pid)
        if title is not None and int(title["job"]) == job_id:
            return True
        return f"SLURM_JOB_ID={job_id}" in (self._read(pid, "environ") or "").split("\0")

    def _title(self, pid: int) -> re.Match[str] | None:
        """What a slurmstepd says it is for."""
        return _STEPD_TITLE.match((self._read(pid, "cmdline") or "").replace("\0", " "))

    def _comm(self, pid: int) -> str:
        return (self._read(pid, "comm") or "").strip()

    def _is_slurms(self, pid: int) -> bool:
        """Whether it is Slurm's own process of a step."""
        return self._comm(pid) == "slurmstepd" and self.uid(pid) == 0

    def _job_of_folder(self, sluid: str) -> int | None:
        if sluid in self._job_of_sluid:
            return self._job_of_sluid[sluid]
        for pid in self._pids():
            owner = parse_cgroup(self._read(pid, "cgroup") or "") if self._is_slurms(pid) else None
            if owner is not None and owner.sluid == sluid and (match := self._title(pid)):
                # A SLUID is unique for ever: it can be kept. Bounded all the same.
                if len(self._job_of_sluid) > 10_000:
                    self._job_of_sluid.clear()
                self._job_of_sluid[sluid] = int(match["job"])
                return self._job_of_sluid[sluid]
        return None

    def _job_by_environment(self, pid: int) -> int | None:
        text = self._read(pid, "environ")
        if not text:
            return None
        environ = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
        claimed = environ.get("SLURM_JOB_ID", "")
        if not re.fullmatch(r"[1-9]\d{0,9}", claimed):
            return None
        if environ.get("SLURMD_NODENAME", self._node) != self._node:
            return None
        uid = self.uid(pid)
        return int(claimed) if uid is not None and self._uid_of_job(int(claimed)) == uid else None

    def _frozen(self, pid: int) -> bool:
        files = self._freezers(pid)
        words = (text_of(file.with_name("cgroup.events") if file.name == _FREEZE else file) for file in files)
        return any(re.search("FROZEN|FREEZING|frozen 1", word) for word in words)

    def _freezers(self, pid: int) -> Iterator[Path]:
        for controllers, path in groups(self._read(pid, "cgroup") or ""):
            step = _STEP.match(path)
            if step is None or _DELEGATED.search(f"/{path}"):
                continue
            if "freezer" in controllers:
                yield self._cgroup_mount / "freezer" / step[0] / "freezer.state"
            elif not controllers:
                yield self._cgroup_mount / step[0] / _FREEZE
                yield self._cgroup_mount / "unified" / step[0] / _FREEZE
