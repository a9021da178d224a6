# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes into the journal and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from controller.model import GpuId, GpuSet, JobId


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the journal keeps of a job. Written again whenever it changes: None leaves what is recorded."""

    id: JobId
    user: str
    gpus: int
    """Size of the gang."""
    submit_time: float
    name: str = ""
    account: str = ""
    partition: str = ""
    weight: float = 1.0
    start_time: float | None = None
    """First start."""
    end_time: float | None = None
    state: str = "PENDING"
    """Slurm's name of the state."""
    request: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The parsed request, JSON-serialisable."""
    moves: int = 0
    """Times it went on on other GPUs than before."""
    suspends: int = 0
    step_seconds: float | None = None
    """Median mini-batch time measured while it ran alone."""
    exit_code: int | None = None
    """128 + the signal where a signal ended it, as shells say it; else its exit code."""
    peak_memory_bytes: int | None = None
    """Most memory seen on one GPU."""
    utilization_fraction: float | None = None
    """Of its GPUs, on average, while it was on them."""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """What a job has used so far; the loop starts from it after a restart."""

    run_seconds: float = 0.0
    gpu_seconds: float = 0.0
    slices: int = 0
    moves: int = 0
    suspends: int = 0
    utilization_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as reports see it: the record, and its use of GPUs up to the moment of reading."""

    record: JobRecord
    run_seconds: float
    gpu_seconds: float
    slices: int
    last_gpus: tuple[GpuId, ...]
    """Where it is, or was last, on GPUs."""
    on_gpus: bool
    """A slice is open."""
    reason: str
    """Why the last decision about it was taken."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An uninterrupted time of a job on GPUs. `end` None: it is still there."""

    job_id: JobId
    gpus: tuple[GpuId, ...]
    start: float
    end: float | None
    reason: str
    """Why it ended."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one job, with its reason."""

    time: float
    job_id: JobId
    action: str
    reason: str
    gpus: tuple[GpuId, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the controller, a node or a job."""

    time: float
    job_id: JobId | None
    node: str | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that was begun and never ended: the controller stopped in the middle of it."""

    op_id: int
    job_id: JobId
    kind: str
    begin: float
    detail: Mapping[str, Any]
    step: str
    """The last step that was recorded; empty: none."""
    step_time: float | None = None


def gpu_names(gpus: Iterable[GpuId]) -> str:
    """`n1:0 n1:1`: how the journal stores GPUs (node names have no blanks)."""
    return " ".join(str(gpu) for gpu in sorted(gpus))


def parse_gpus(text: str) -> tuple[GpuId, ...]:
    """Undo `gpu_names`. Raises ValueError."""
    return tuple(GpuId(node, int(ordinal)) for node, _, ordinal in (w.rpartition(":") for w in text.split()))


def gpu_set(text: str) -> GpuSet:
    """Undo `gpu_names`, as a set."""
    return frozenset(parse_gpus(text))
