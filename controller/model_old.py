# SPDX-License-Identifier: GPL-2.0-or-later
"""The domain: what the controller knows (Snapshot) and what it wants (Plan).

Everything here is frozen. A policy is a function of these types alone.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, NewType

from controller.frozen import quickly_made

JobId = NewType("JobId", int)


class GpuId(NamedTuple):
    """One physical GPU: the Slurm node it is in and its NVML index there.

    (A tuple has a method called `index`, hence `ordinal`.)
    """

    node: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.node}:{self.ordinal}"


GpuSet = frozenset[GpuId]


class SuspendMethod(str, enum.Enum):
    """How a job's GPU state is taken off the GPU (`--gandiva-suspend`)."""

    COOPERATIVE = "cooperative"
    TRANSPARENT = "transparent"
    REQUEUE = "requeue"


class Unsuspendable(str, enum.Enum):
    """What becomes of a job that cannot be suspended (`suspend.unsuspendable`)."""

    KEEP = "keep"
    """It keeps its GPUs, and is asked again later."""
    REQUEUE = "requeue"
    CANCEL = "cancel"


class Phase(str, enum.Enum):
    """Where a job really is, derived from Slurm and from its nodes, never from memory."""

    __hash__ = str.__hash__  # (An enumeration's own is written in Python, and sets of members ask for it.)

    QUEUED = "queued"
    """Held in Slurm by us, waiting for a decision."""
    INELIGIBLE = "ineligible"
    """Pending for a reason that is not ours: dependency, begin time, held by its user."""
    STARTING = "starting"
    """Released to Slurm with a binding, not running yet."""
    RUNNING = "running"
    """Running and using its GPUs."""
    YIELDED = "yielded"
    """Running in Slurm, but off its GPUs, waiting in step()."""
    SUSPENDED = "suspended"
    """Suspended in Slurm and off its GPUs."""
    STUCK = "stuck"
    """Suspended in Slurm with its memory still on the GPUs, or in a state its node cannot tell.
    Its GPUs count as held."""
    COMPLETING = "completing"
    """Over, but Slurm is still cleaning up."""
    UNKNOWN = "unknown"
    """A node of this job does not answer. Its GPUs count as held; nothing is done to it."""


ON_GPU = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STUCK, Phase.COMPLETING, Phase.UNKNOWN})
"""Phases in which a job's running GPUs are not free."""

ALLOCATED = ON_GPU | {Phase.YIELDED, Phase.SUSPENDED}
"""Phases in which Slurm has given the job its binding."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for with `--gandiva…` flags. None means: not said, the site's default counts."""

    gpus: int
    """GPUs of the whole gang."""
    nodes: int | None = 1
    """Nodes the gang must be spread over evenly; None leaves it to the policy."""
    weight: float = 1.0
    """The weight that counts: what its user asked for, or the site's limit where that is less."""
    min_gpus: int | None = None
    max_gpus: int | None = None
    pack: bool | None = None
    migrate: bool | None = None
    suspend: SuspendMethod | None = None
    gpu_types: tuple[str, ...] = ()
    model: str | None = None
    nodelist: tuple[str, ...] = ()
    """The nodes the user insists on (`--nodelist`)."""
    weight_asked: float | None = None
    """What its user asked for, where a limit makes the weight less; else None."""
    weight_limit: str = ""
    """Whose limit that is: `account NAME`, `qos NAME` or `site`."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a job while it ran alone. Zero or None: not known yet."""

    step_seconds: float | None = None
    steps_done: int = 0
    samples_done: float = 0.0
    peak_memory_bytes: int = 0
    utilization_fraction: float | None = None
    state_bytes: int = 0
    largest_tensor_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FailedSuspends:
    """Suspends of a job that failed since it last left its GPUs."""

    tries: int
    since: float
    """The first of them."""
    why: str
    """What the last one failed with."""
    way_out: Unsuspendable = Unsuspendable.KEEP
    """What becomes of the job when it is to leave its GPUs the next time."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as Slurm and its node report it."""

    id: GpuId
    model: str
    memory_bytes: int = 0
    memory_used_bytes: int | None = None
    """None: the node did not say, so the GPU must not be given away."""
    utilization_fraction: float | None = None
    healthy: bool = True
    ordinary_job: JobId | None = None
    """The ordinary (not Gandiva) job that Slurm gave this GPU exclusively."""
    shards: int = 0
    """How many Gandiva jobs Slurm can bind to this GPU at once."""
    left_by: tuple[tuple[JobId, int], ...] = ()
    """Jobs that are off this GPU and have left memory on it (contexts, communicators): the bytes of each."""

    def left_bytes(self, except_by: JobId | None = None) -> int:
        """What jobs that are off it have left on it together."""
        return sum(size for job_id, size in self.left_by if job_id != except_by)


@quickly_made
@dataclass(frozen=True, slots=True)
class Node:
    """A GPU server."""

    name: str
    gpus: tuple[Gpu, ...]
    available: bool = True
    """False: Slurm would start nothing here (down, drained, …) or the agent does not answer."""
    reason: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int | None = None
    """Host memory that Slurm has not allocated yet. None: not tracked."""
    switch: str = ""

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)


@quickly_made
@dataclass(frozen=True, slots=True)
class Job:
    """A Gandiva job, from submission to its end."""

    id: JobId
    user: str
    request: Request
    phase: Phase
    submit_time: float
    """Seconds since the epoch (virtual seconds in simulation)."""
    name: str = ""
    account: str = ""
    partition: str = ""
    uid: int = -1
    priority_class: int = 0
    """A job of a higher class is never suspended for one of a lower class (SPEC 1.3)."""
    binding: GpuSet = frozenset()
    """GPUs Slurm allocated. Empty while pending."""
    running_on: GpuSet = frozenset()
    """GPUs it occupies, or occupied last; a subset of the binding."""
    movable: bool = False
    """May resume on other GPUs of its binding than those it was suspended on."""
    suspendable: bool = True
    """False: a suspend failed recently; until told otherwise its GPUs are its own."""
    start_time: float | None = None
    """First start, seconds since the epoch."""
    run_seconds: float = 0.0
    """Time on GPUs so far, the delay of every suspend included (it is charged to the job)."""
    gpu_seconds: float = 0.0
    """Attained service: run_seconds times the size of the gang."""
    accrues_since: float | None = None
    """It is on its GPUs, and its time there since then is not in run_seconds and gpu_seconds yet (where the
    snapshot says what changed, jobs that only ran on are not made anew). None: both are right as they are."""
    duration_seconds: float | None = None
    """Time on GPUs it needs in all, where somebody knows: a simulation does, Slurm does not."""
    memory_per_node_bytes: int = 0
    """Host memory Slurm allocates per node."""
    cpus_per_node: int = 0
    excluded_nodes: frozenset[str] = frozenset()
    required_nodes: frozenset[str] = frozenset()
    not_before: float | None = None
    """Do not try to place it before this time (an earlier try failed)."""
    exempt_until: float | None = None
    """Running, it is not preempted before this time: what its last switch took has not paid off yet."""
    profile: Profile = Profile()
    failed_suspends: FailedSuspends | None = None

    @property
    def way_out(self) -> Unsuspendable:
        """What takes it off its GPUs where a suspend cannot; `KEEP`: it can be suspended, as far as known."""
        return Unsuspendable.KEEP if self.failed_suspends is None else self.failed_suspends.way_out

    @property
    def gpus(self) -> int:
        """Size of the gang."""
        return self.request.gpus

    def run_seconds_at(self, time: float) -> float:
        """Time on GPUs up to `time` (that of the snapshot)."""
        return self.run_seconds + (0.0 if self.accrues_since is None else time - self.accrues_since)

    def gpu_seconds_at(self, time: float) -> float:
        """Attained service up to `time` (that of the snapshot)."""
        ran = 0.0 if self.accrues_since is None else time - self.accrues_since
        return self.gpu_seconds + ran * len(self.running_on)

    @property
    def floating(self) -> bool:
        """Bound to more GPUs than it uses: it runs on any of them in turn."""
        return len(self.binding) > self.request.gpus


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs from an earlier snapshot of the same controller."""

    since: int
    """Serial number of that snapshot."""
    jobs: frozenset[JobId]
    """Jobs that are new, gone, or not as they were (passing of time aside)."""
    nodes: frozenset[str]
    """Nodes whose GPUs, health or availability may differ (what is in use on them aside)."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one instant. Deterministic input of a policy; can be saved and replayed."""

    time: float
    nodes: Mapping[str, Node]
    jobs: Mapping[JobId, Job]
    busy: frozenset[JobId] = frozenset()
    """Jobs in the middle of a transition. A policy leaves them as they are."""
    serial: int = 0
    """Number of this snapshot within one run of a controller; 0: not numbered."""
    changes: Changes | None = None
    """What changed since an earlier one. None: not known, look at everything."""

    def gpu(self, gpu: GpuId) -> Gpu | None:
        """The GPU, or None when its node is gone."""
        node = self.nodes.get(gpu.node)
        if node is None:
            return None
        return next((g for g in node.gpus if g.id == gpu), None)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one job should be doing."""

    run: bool
    """On its GPUs, or bound but off them."""
    gpus: GpuSet = frozenset()
    """Where it runs, or would run."""
    binding: GpuSet = frozenset()
    """What Slurm should allocate: `gpus` for an exact placement, more for a floating job."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every job should do until the next plan. A job without an assignment waits in the queue
    (or, if it is allocated already, stays as it is)."""

    assignments: Mapping[JobId, Assignment]
    reasons: Mapping[JobId, str] = field(default_factory=lambda: MappingProxyType({}))
    """Why: for every job that waits, starts, stops or moves, one sentence for `gandiva explain`."""
    state: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The policy's memory for its next call; JSON-serialisable, kept in the journal."""
    wake_at: float | None = None
    """Plan again at this time at the latest, even if nothing happens."""
    changed: frozenset[JobId] | None = None
    """Jobs whose part may differ from the policy's plan before. None: not known, look at everything."""
