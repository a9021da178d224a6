# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes into the journal and what comes out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from controller.model import GpuId, GpuSet, JobId, Reason, value
from controller.model.value import empty

MAX_TEXT = 2000
"""Longest name, reason or message that is kept, in characters."""


@value(kw_only=True)
class JobRecord:
    """What the journal keeps of a job. Written again whenever it changes; `statements.JOB` says what
    stays of the earlier record."""

    id: JobId
    user: str
    account: str = ""
    partition: str = ""
    name: str = ""
    gpus: int
    """Size of the gang."""
    weight: float = 1.0
    submit_time: float
    start_time: float | None = None
    """First start."""
    end_time: float | None = None
    state: str = "PENDING"
    """Slurm's name of the state."""
    request: Mapping[str, Any] = field(default_factory=empty)
    """The parsed request, JSON-serialisable."""
    moves: int = 0
    """Times it continued on other GPUs than before."""
    suspends: int = 0
    step_seconds: float | None = None
    """Median mini-batch time measured while it ran alone."""
    exit_code: int | None = None
    """128 + the signal where a signal ended it, as shells say it; else its exit code."""
    peak_memory_bytes: int | None = None
    """Most memory seen on one GPU."""
    utilization_fraction: float | None = None
    """Of its GPUs, on average, while it was on them."""


RECORD_FIELDS = tuple(each.name for each in fields(JobRecord))
"""In the order of the table's columns."""


@value
class JobTotals:
    """What a job has used so far; the loop starts from it after a restart."""

    run_seconds: float = 0.0
    gpu_seconds: float = 0.0
    waited_seconds: float = 0.0
    """Off GPUs after its first slice, up to the last heartbeat."""
    slices: int = 0
    moves: int = 0
    suspends: int = 0
    utilization_fraction: float | None = None


@value
class JobRow:
    """A job as reports see it: the record, and its use of GPUs up to the moment of reading."""

    record: JobRecord
    run_seconds: float
    gpu_seconds: float
    slices: int
    last_gpus: GpuSet
    """Where it is, or was last, on GPUs."""
    on_gpus: bool
    """A slice is open."""
    reason: str
    """Why the last decision about it was taken."""
    least_gpus: int
    """Of its slices; 0: it had none."""
    most_gpus: int
    packs: int
    """Times a move put it beside another job."""
    trials: int
    """Times a move changed something for it on trial."""
    gain: float | None
    """The last one that was measured of a move which changed something for it."""


@value
class Slice:
    """An uninterrupted time of a job on GPUs. `end` None: it is still there."""

    job_id: JobId
    gpus: GpuSet
    start: float
    end: float | None
    reason: str
    """Why it ended."""


@value
class Decision:
    """One decision about one job, with its reason."""

    time: float
    job_id: JobId
    action: str
    reason: str
    gpus: GpuSet
    reason_code: str = Reason.OTHER.value
    """A value of `Reason`, or of one that a later controller has."""


@value
class Event:
    """Something that happened to the controller, a node or a job."""

    time: float
    job_id: JobId | None
    node: str | None
    kind: str
    message: str
    gain: float | None = None
    """Of a move: throughput of its jobs, as a multiple of that without it. None: it was not measured."""


@value
class OpenOperation:
    """An operation that was begun and never ended: the controller stopped in the middle of it."""

    op_id: int
    job_id: JobId
    kind: str
    begin: float
    step: str
    """The last step that was recorded; empty: none."""
    step_time: float | None = None


SLICES = "SELECT job_id, gpus, start, end, reason FROM slices"
DECISIONS = "SELECT time, job_id, action, reason, gpus, reason_code FROM decisions"
EVENTS = "SELECT time, job_id, node, kind, message, gain FROM events"
"""Rows with the columns in the order of the fields."""


def slice_of(row: Sequence[Any]) -> Slice:
    """A row of SLICES. Raises ValueError, AttributeError."""
    job_id, gpus, *rest = row
    return Slice(JobId(job_id), gpu_set(gpus), *rest)


def decision_of(row: Sequence[Any]) -> Decision:
    """A row of DECISIONS. Raises as `slice_of`."""
    time, job_id, action, reason, gpus, code = row
    return Decision(time, JobId(job_id), action, reason, gpu_set(gpus), code)


def stored_text(text: str) -> str:
    """At most MAX_TEXT characters, without what SQLite cannot store, such as lone surrogates."""
    return (
        text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def gpu_names(gpus: Iterable[GpuId]) -> str:
    """`n1:0 n1:1`: how the journal stores GPUs (node names have no blanks)."""
    return " ".join(str(gpu) for gpu in sorted(gpus))


def parse_gpus(text: str) -> tuple[GpuId, ...]:
    """Undo `gpu_names`. Raises ValueError."""
    return tuple(GpuId(node, int(ordinal)) for node, _, ordinal in (w.rpartition(":") for w in text.split()))


def gpu_set(text: str) -> GpuSet:
    """Undo `gpu_names`, as a set."""
    return frozenset(parse_gpus(text))
