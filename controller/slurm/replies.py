# SPDX-License-Identifier: GPL-2.0-or-later
"""What `squeue --json` and `scontrol show nodes --json` answer, from 24.11 on, as records.

Numbers are `{"set": …, "infinite": …, "number": …}`, or plain in older data parsers. Only what is used is
declared; the rest is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from controller.errors import ClusterUnavailable
from controller.model import GpuId, JobId
from controller.slurm.gres import gpu_indices, parse_gres, tres_memory_mib
from controller.slurm.port import JobState
from controller.slurm.records import PREFIX, JobRecord, NodeRecord, host_names
from controller.slurm.states import job_state

_ALLOCATED = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("number", 0) if value.get("set") else 0
    return 0 if value is None else value


def _optional_number(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("number") if value.get("set") else None
    return value


def _words(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Int = Annotated[int, BeforeValidator(_number)]
_OptionalInt = Annotated[int | None, BeforeValidator(_optional_number)]
_Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class _Signal(BaseModel):
    id: _Int = 0


class _ExitCode(BaseModel):
    return_code: _Int = 0
    signal: _Signal = _Signal()


class _Job(BaseModel):
    model_config = ConfigDict(extra="ignore")

    job_id: int
    user_id: int
    user_name: str = ""
    name: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    job_state: _Words
    state_reason: str = ""
    state_description: str = ""
    priority: _Int = 0
    dependency: str = ""
    eligible_time: _Int = 0
    submit_time: _Int = 0
    start_time: _Int = 0
    end_time: _Int = 0
    admin_comment: str = ""
    tres_per_node: str = ""
    tres_req_str: str = ""
    tres_alloc_str: str = ""
    nodes: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    node_count: _Int = 0
    max_nodes: _Int = 0
    cpus: _Int = 0
    memory_per_node: _Int = 0
    restart_cnt: int = 0
    exit_code: _ExitCode = _ExitCode()
    array_job_id: _Int = 0
    array_task_id: _OptionalInt = None
    array_task_string: str = ""
    array_max_tasks: _Int = 0
    gres_detail: list[str] = Field(default_factory=list)

    def record(self) -> JobRecord:
        node_count = max(self.node_count, 1)
        total_mib = tres_memory_mib(self.tres_alloc_str or self.tres_req_str)
        return JobRecord(
            id=self.job_id,
            uid=self.user_id,
            user=self.user_name,
            name=self.name,
            account=self.account,
            partition=self.partition,
            qos=self.qos,
            state=self.job_state,
            reason=self.state_description or self.state_reason,
            priority=self.priority,
            dependency=self.dependency,
            begin_time=self.eligible_time,
            submit_time=self.submit_time,
            start_time=self.start_time,
            end_time=self.end_time,
            request=self.admin_comment,
            gres=self.tres_per_node,
            nodes=self.nodes,
            required_nodes=self.required_nodes,
            excluded_nodes=self.excluded_nodes,
            min_nodes=self.node_count,
            max_nodes=self.max_nodes,
            cpus=self.cpus,
            memory_per_node_mib=self.memory_per_node if total_mib is None else total_mib // node_count,
            restarts=self.restart_cnt,
            exit_code=self.exit_code.return_code,
            exit_signal=self.exit_code.signal.id,
            array_job_id=self.array_job_id,
            array_task_id=-1 if self.array_task_id is None else self.array_task_id,
            array_tasks=self.array_task_string,
            array_limit=self.array_max_tasks,
        )

    def whole_gpus(self) -> Iterable[GpuId]:
        """The GPUs it holds as GRES `gpu`. Raises ValueError."""
        if job_state(self.job_state) in _ALLOCATED:
            # One detail per allocated node, in the order of the node list.
            for node, detail in zip(host_names(self.nodes), self.gres_detail, strict=False):
                for index in gpu_indices(parse_gres(detail)):
                    yield GpuId(node, index)


class _Node(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    address: str = ""
    hostname: str = ""
    state: _Words
    reason: str = ""
    gres: str = ""
    gres_used: str = ""
    cpus: int = 0
    effective_cpus: _Int = 0
    """Without those that Slurm keeps for itself (CoreSpecCount)."""
    real_memory: int = 0
    specialized_memory: _Int = 0
    """MemSpecLimit: no job gets it."""
    alloc_memory: int = 0
    active_features: _Words = ()

    def record(self) -> NodeRecord:
        return NodeRecord(
            name=self.name,
            address=self.address or self.hostname,
            state=self.state,
            reason=self.reason,
            gres=self.gres,
            gres_used=self.gres_used,
            cpus=self.effective_cpus or self.cpus,
            memory_mib=max(self.real_memory - self.specialized_memory, 0),
            memory_allocated_mib=self.alloc_memory,
            features=self.active_features,
        )


def gandiva_jobs(reply: str, what: str) -> tuple[tuple[JobRecord, ...], dict[GpuId, JobId]]:
    """The records of the Gandiva jobs in a reply, and which GPUs all the jobs in it hold as GRES `gpu`.
    Raises ClusterUnavailable when it makes no sense."""
    records: list[JobRecord] = []
    whole: dict[GpuId, JobId] = {}
    try:
        for item in _items(reply, "jobs", what):
            ours = str(item.get("admin_comment", "")).startswith(PREFIX)
            if not ours and not item.get("gres_detail"):
                continue
            job = _Job.model_validate(item)
            whole.update(dict.fromkeys(job.whole_gpus(), JobId(job.job_id)))
            if ours:
                records.append(job.record())
    except ValueError as error:
        raise _nonsense(what, error) from error
    return tuple(records), whole


def any_jobs(reply: str, what: str) -> tuple[JobRecord, ...]:
    """The records of all jobs in a reply. Raises ClusterUnavailable when it makes no sense."""
    try:
        return tuple(_Job.model_validate(item).record() for item in _items(reply, "jobs", what))
    except ValueError as error:
        raise _nonsense(what, error) from error


def nodes(reply: str, what: str) -> tuple[NodeRecord, ...]:
    """The records of the nodes in a reply. Raises ClusterUnavailable when it makes no sense."""
    try:
        return tuple(_Node.model_validate(item).record() for item in _items(reply, "nodes", what))
    except ValueError as error:
        raise _nonsense(what, error) from error


def _items(reply: str, key: str, what: str) -> list[dict[str, Any]]:
    try:
        whole = json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise ClusterUnavailable(f"{what}: the answer is no JSON: {error}") from error
    found = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ClusterUnavailable(f"{what}: the answer has no list of {key}")
    return found


def _nonsense(what: str, error: ValueError) -> ClusterUnavailable:
    said = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        said = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return ClusterUnavailable(f"{what}: unexpected answer: {said}")
