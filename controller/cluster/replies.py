# SPDX-License-Identifier: GPL-2.0-or-later
"""What `squeue --json` and `scontrol show nodes --json` answer, from 24.11 on, as records.

Numbers are `{"set": …, "infinite": …, "number": …}`, or plain in older data parsers. Only what is used is
declared; the rest is ignored.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from controller.cluster.gres import indices_of, tres_memory_mib
from controller.cluster.port import ALLOCATED
from controller.cluster.raw import PREFIX, JobRecord, NodeRecord, trial_word
from controller.cluster.records import host_names
from controller.cluster.states import job_state
from controller.errors import ClusterUnavailable
from controller.model import GpuId, JobId, on_nodes
from controller.settings.base import first_wrong


def _number(unset: int, value: Any) -> Any:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return unset if value is None else value


def _words(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Int = Annotated[int, BeforeValidator(lambda value: _number(0, value))]
_Task = Annotated[int, BeforeValidator(lambda value: _number(-1, value))]
_Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class _Job(BaseModel):
    """A job under the names of `JobRecord`."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    id: int = Field(alias="job_id")
    uid: int = Field(alias="user_id")
    user: str = Field("", alias="user_name")
    name: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: _Words = Field(alias="job_state")
    state_reason: str = ""
    state_description: str = ""
    priority: _Int = 0
    dependency: str = ""
    begin_time: _Int = Field(0, alias="eligible_time")
    submit_time: _Int = 0
    start_time: _Int = 0
    end_time: _Int = 0
    deadline: _Int = 0
    time_limit_minutes: _Int = Field(0, alias="time_limit")
    request: str = Field("", alias="admin_comment")
    comment: str = ""
    gres: str = Field("", alias="tres_per_node")
    tres_req_str: str = ""
    tres_alloc_str: str = ""
    nodes: str = ""
    excluded_nodes: str = ""
    min_nodes: _Int = Field(0, alias="node_count")
    max_nodes: _Int = 0
    cpus: _Int = 0
    memory_per_node: _Int = 0
    restarts: int = Field(0, alias="restart_cnt")
    exit_code: _Int = Field(0, validation_alias=AliasPath("exit_code", "return_code"))
    exit_signal: _Int = Field(0, validation_alias=AliasPath("exit_code", "signal", "id"))
    array_job_id: _Int = 0
    array_task_id: _Task = -1
    array_tasks: str = Field("", alias="array_task_string")
    array_limit: _Int = Field(0, alias="array_max_tasks")
    may_requeue: bool = Field(True, alias="requeue")
    gres_detail: list[str] = Field(default_factory=list)

    @property
    def reason(self) -> str:
        return self.state_description or self.state_reason

    @property
    def trial(self) -> str:
        return trial_word(self.comment)

    @property
    def memory_per_node_mib(self) -> int:
        total_mib = tres_memory_mib(self.tres_alloc_str or self.tres_req_str)
        return self.memory_per_node if total_mib is None else total_mib // max(self.min_nodes, 1)

    def record(self) -> JobRecord:
        return JobRecord._make(getattr(self, field) for field in JobRecord._fields)

    def whole_gpus(self) -> Iterable[GpuId]:
        """The GPUs it holds as GRES `gpu`. Raises ValueError."""
        if job_state(self.state) in ALLOCATED:
            # One detail per allocated node, in the order of the node list.
            for node, detail in zip(host_names(self.nodes), self.gres_detail, strict=False):
                yield from on_nodes((node,), indices_of("gpu", detail))


class _Node(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)

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
    version: str = ""

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
            release=self.version,
        )


def gandiva_jobs(reply: str, what: str) -> tuple[tuple[JobRecord, ...], dict[GpuId, JobId]]:
    """The records of the Gandiva jobs in a reply, and which GPUs all the jobs in it hold as GRES `gpu`.
    Raises ClusterUnavailable when it makes no sense."""
    records: list[JobRecord] = []
    whole: dict[GpuId, JobId] = {}
    with _sensible(what):
        for item in _items(reply, "jobs", what):
            ours = str(item.get("admin_comment", "")).startswith(PREFIX)
            if not ours and not item.get("gres_detail"):
                continue
            job = _Job.model_validate(item)
            whole.update(dict.fromkeys(job.whole_gpus(), JobId(job.id)))
            if ours:
                records.append(job.record())
    return tuple(records), whole


def any_jobs(reply: str, what: str) -> tuple[JobRecord, ...]:
    """The records of all jobs in a reply. Raises ClusterUnavailable when it makes no sense."""
    with _sensible(what):
        return tuple(_Job.model_validate(item).record() for item in _items(reply, "jobs", what))


def nodes(reply: str, what: str) -> tuple[NodeRecord, ...]:
    """The records of the nodes in a reply. Raises ClusterUnavailable when it makes no sense."""
    with _sensible(what):
        return tuple(_Node.model_validate(item).record() for item in _items(reply, "nodes", what))


def _items(reply: str, key: str, what: str) -> list[dict[str, Any]]:
    try:
        whole = json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise ClusterUnavailable(f"{what}: the answer is no JSON: {error}") from error
    found = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ClusterUnavailable(f"{what}: the answer has no list of {key}")
    return found


@contextlib.contextmanager
def _sensible(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        said = first_wrong(error, "answer") if isinstance(error, ValidationError) else str(error)
        raise ClusterUnavailable(f"{what}: unexpected answer: {said}") from error
