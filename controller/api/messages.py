# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON of the API, made by the server and checked by the client. docs/reports.md describes it.

Times are seconds since the epoch. GPUs are `node:ordinal`, N of the node's /dev/nvidiaN. Keys are only
ever added; clients ignore those they do not know.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from typing_extensions import Self

from controller.model import FailedSuspends

if TYPE_CHECKING:
    from controller.journal import JobRow, Slice

MAX_NAMES = 1000
"""Longest list in a query."""


def _names(gpus: object) -> object:
    """A set of GPUs as their names, in order."""
    return [str(gpu) for gpu in sorted(gpus)] if isinstance(gpus, frozenset) else gpus


GpuNames = Annotated[list[str], BeforeValidator(_names)]


class Message(BaseModel):
    """Base of all answers and their parts; also made from records whose fields have the same names."""

    model_config = ConfigDict(extra="ignore", frozen=True, from_attributes=True)

    @classmethod
    def of(cls, *records: Any, **more: Any) -> Self:
        """What dataclasses have in fields of the same names (the last one that has it), and `more`."""
        known = {field.name: getattr(of, field.name) for of in records for field in fields(of)}
        return cls.model_validate(known | more)


class GpuMessage(Message):
    ordinal: int
    model: str
    memory_bytes: int = 0
    memory_used_bytes: int | None = None
    utilization_fraction: float | None = None
    healthy: bool = True
    reason: str = ""
    """Why it is not healthy."""
    ordinary_job: int | None = None
    shards: int = 0
    running: list[int] = []
    """Jobs that are on it now, or not known to be off it."""
    waiting: list[int] = []
    """Jobs bound to this GPU that are off it now and wait for their turn."""
    left_by: dict[int, int] = {}
    """Memory that jobs which are off it have left on it: job id -> bytes."""


class NodeMessage(Message):
    name: str
    available: bool
    reason: str = ""
    gpus: list[GpuMessage] = []


class _Job(Message):
    """What all answers say of a job."""

    job_id: int
    user: str
    name: str = ""
    account: str = ""
    partition: str = ""
    gpus: int
    weight: float = 1.0
    submit_time: float
    start_time: float | None = None
    run_seconds: float = 0.0
    gpu_seconds: float = 0.0
    step_seconds: float | None = None
    shares_with: list[int] = []
    """Jobs on the same GPUs at the same time; empty when it is over."""
    failed_suspends: FailedSuspends | None = None
    """Absent when it can be suspended, as far as known."""
    reason: str = ""


class LiveJobMessage(_Job):
    """A job as the loop saw it last."""

    phase: str
    priority_class: int = 0
    asked_gpus: int = 0
    """What its user asked for; `gpus` is its size now."""
    reason_code: str = "other"
    """The kind of its reason, of those in docs/reports.md; a later controller may know more of them."""
    binding: list[str] = []
    running_on: list[str] = []
    bad_gpus: dict[str, str] = {}
    """GPUs of its allocation that no job is put on: GPU -> why."""
    may_requeue: bool = True
    left_on: dict[str, int] = {}
    """Memory it has left on GPUs that it is off: GPU -> bytes."""
    movable: bool = False
    may_migrate: bool = False
    """It may be put on another server now."""
    has_store: bool = False
    """Its sessions have a checkpoint store."""
    suspendable: bool = True
    steps_done: int = 0
    busy: bool = False
    """In the middle of a switch."""
    move: str = ""
    """The last one that changed something for it since the controller started."""
    verdict: str = ""
    """What became of that: `planned`, `tried`, `kept`, `undone`."""
    gain: float | None = None
    """Throughput of the jobs of that move, as a multiple of that without it; absent: not measured."""


class GpusMessage(Message):
    """`/v1/gpus`: every GPU, and every job that has not ended."""

    time: float
    """Of the snapshot."""
    age_seconds: float = 0.0
    """How long ago the loop published it, by the controller's clock."""
    problems: list[str] = []
    """What is wrong now, one sentence each."""
    nodes: list[NodeMessage] = []
    jobs: list[LiveJobMessage] = []

    def uses(self) -> Counter[str]:
        """How many GPUs are `running`, `ordinary` (an ordinary job is on them), `idle` or `unavailable`."""
        found: Counter[str] = Counter()
        for node in self.nodes:
            for gpu in node.gpus:
                unused = "idle" if node.available and gpu.healthy else "unavailable"
                used = "running" if gpu.running else "ordinary"
                found[used if gpu.running or gpu.ordinary_job is not None else unused] += 1
        return found


class JobMessage(_Job):
    """A job with its use of GPUs, from the journal."""

    state: str
    end_time: float | None = None
    slices: int = 0
    suspends: int = 0
    moves: int = 0
    exit_code: int | None = None
    """128 + the signal where a signal ended it; else its exit code."""
    peak_memory_bytes: int | None = None
    """Most memory seen on one GPU."""
    utilization_fraction: float | None = None
    """Of its GPUs, on average, while it was on them."""
    last_gpus: GpuNames = []
    on_gpus: bool = False
    phase: str | None = None
    """Where the controller has it now; absent when it is over."""
    least_gpus: int = 0
    """That it was on; 0: it was on none."""
    most_gpus: int = 0
    packs: int = 0
    """Times a move put it beside another job."""
    trials: int = 0
    """Times a move changed something for it on trial."""
    gain: float | None = None
    """The last one that was measured of a move which changed something for it."""
    request: dict[str, Any] = {}

    @classmethod
    def of_row(cls, row: "JobRow", **more: Any) -> "JobMessage":
        """A row of the journal; `more`: what the running controller knows better."""
        return cls.of(row, row.record, job_id=row.record.id, **more)


class JobsMessage(Message):
    """`/v1/jobs`: jobs that match the query, in the order of their ids."""

    time: float
    jobs: list[JobMessage] = []
    truncated: bool = False
    """There are more; these are the newest."""


class DecisionMessage(Message):
    time: float
    action: str
    reason: str
    reason_code: str = "other"
    gpus: GpuNames = []


class SliceMessage(Message):
    """One uninterrupted time on GPUs."""

    start: float
    end: float | None = None
    gpus: GpuNames = []
    reason: str = ""


class TimelineSliceMessage(SliceMessage):
    job_id: int


class TimelineMessage(Message):
    """`/v1/timeline`: the slices of many jobs, oldest first."""

    time: float
    slices: list[TimelineSliceMessage] = []
    truncated: bool = False
    """There are more; these are the newest."""

    @classmethod
    def of_slices(cls, slices: "Sequence[Slice]", time: float, limit: int) -> "TimelineMessage":
        """Slices of the journal, of which at most `limit` were asked for."""
        return cls.of(time=time, slices=slices, truncated=len(slices) == limit)


class EventMessage(Message):
    time: float
    kind: str
    message: str
    node: str | None = None
    job_id: int | None = None
    gain: float | None = None
    """Of a move: throughput of its jobs, as a multiple of that without it."""


class ExplainMessage(Message):
    """`/v1/explain/<jobid>`: why a job is where it is."""

    time: float
    job: JobMessage | None = None
    live: LiveJobMessage | None = None
    rivals: list[LiveJobMessage] = []
    """Jobs that are on the GPUs it is bound to."""
    decisions: list[DecisionMessage] = []
    slices: list[SliceMessage] = []
    events: list[EventMessage] = []


class StatusMessage(Message):
    """`/v1/status`: how the controller is doing."""

    time: float
    version: str
    policy: str
    started: float
    ticks: int = 0
    tick_seconds: float = 0.0
    age_seconds: float = 0.0
    """How long ago the loop published last."""
    healthy: bool = True
    problems: list[str] = []
    nodes: int = 0
    nodes_available: int = 0
    gpus: int = 0
    gpus_by_use: dict[str, int] = {}
    """`running`, `ordinary`, `idle`, `unavailable`."""
    jobs_by_phase: dict[str, int] = {}
    events: list[EventMessage] = []
