# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs: what was asked for, where they are, what they have had."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from controller.model.cluster import GpuSet, JobId
from controller.model.value import empty, value

MAX_WEIGHT = 100.0
"""Largest weight that the flag takes."""


class SuspendMethod(str, enum.Enum):
    """How a job's GPU state is taken off the GPU (`--gandiva-suspend`)."""

    COOPERATIVE = "cooperative"
    TRANSPARENT = "transparent"
    REQUEUE = "requeue"


class Unsuspendable(str, enum.Enum):
    """What becomes of a job that cannot be suspended (`suspend.unsuspendable`)."""

    KEEP = "keep"
    """It keeps its GPUs, and is asked again later."""
    STORE = "store"
    """It is saved into its checkpoint store and starts again from there; without one it keeps its GPUs."""
    REQUEUE = "requeue"
    CANCEL = "cancel"


class Trespass(str, enum.Enum):
    """What becomes of a job with memory on GPUs that are not its own (`suspend.trespass`)."""

    KEEP = "keep"
    REQUEUE = "requeue"
    CANCEL = "cancel"


class Phase(str, enum.Enum):
    """Where a job is, derived from Slurm and from its nodes, never from memory. Policies read abilities
    (`Job.may_start`, …) instead."""

    QUEUED = "queued"
    """Held in Slurm by the controller, waiting for a decision."""
    INELIGIBLE = "ineligible"
    """Pending for a reason of its own: dependency, begin time, held by its user."""
    STARTING = "starting"
    """Released to Slurm with a binding, not running yet."""
    RUNNING = "running"
    """Running and using its GPUs."""
    YIELDED = "yielded"
    """Running in Slurm, but off its GPUs, waiting in step()."""
    SUSPENDED = "suspended"
    """Suspended in Slurm and off its GPUs."""
    SUSPENDING = "suspending"
    """An operation takes it off its GPUs. These count as held until its nodes say that its memory is off."""
    RESUMING = "resuming"
    """An operation puts it back onto GPUs of its allocation."""
    STUCK = "stuck"
    """The same as SUSPENDING, but no operation is under way: it failed, was late, or was cut off."""
    COMPLETING = "completing"
    """Over, but Slurm is still cleaning up."""
    UNKNOWN = "unknown"
    """A node of this job does not answer. Its GPUs count as held; nothing is done to it."""


class StateAt(str, enum.Enum):
    """Where a job's GPU state is, or goes when it leaves its GPUs."""

    GPU = "gpu"
    HOST = "host"
    """Host memory of its nodes: it goes on there."""
    STORE = "store"
    """A checkpoint: it can start anywhere."""


IN_HOST_MEMORY = frozenset({Phase.YIELDED, Phase.SUSPENDED})
"""Phases in which a job is off its GPUs, and its state on its nodes."""

ON_GPU = frozenset(Phase) - IN_HOST_MEMORY - {Phase.QUEUED, Phase.INELIGIBLE}
"""Phases in which a job's GPUs are not free."""

ALLOCATED = ON_GPU | IN_HOST_MEMORY
"""Phases in which Slurm has given the job its binding."""


@value
class Size:
    """GPUs of the gang: the least it can go on with, what it asked for, the most it can use."""

    least: int
    wanted: int
    most: int

    @classmethod
    def exactly(cls, gpus: int) -> Size:
        """A gang that neither grows nor shrinks."""
        return cls(gpus, gpus, gpus)


@value
class Search:
    """A job's place in a search for hyper-parameters: one of the trainings that its user compares
    (SPEC 1.10)."""

    name: str
    """Searches of two users are two, whatever their names."""
    priority: float = 1.0
    """Its part of the search's turns against the search's other jobs. Changes while it runs."""
    exclusive: bool = False
    """It comes before the others of its search. Changes while it runs."""


@value(kw_only=True)
class Request:
    """What counts of what a user asked for with `--gandiva…` flags: the site's defaults are in it, and its
    limit of the weight. `suspend` is None where the user did not say."""

    size: Size
    nodes: int | None = 1
    """Nodes the gang is spread over evenly; None leaves it to the policy."""
    weight: float = 1.0
    """The weight that counts: what its user asked for, or the site's limit where that is less."""
    weight_asked: float | None = None
    """What its user asked for, where a limit makes the weight less; else None."""
    weight_limit: str = ""
    """Whose limit that is: `account NAME`, `qos NAME` or `site`."""
    gpu_types: tuple[str, ...] = ()
    model: str | None = None
    may_pack: bool = False
    may_migrate: bool = True
    suspend: SuspendMethod | None = None
    nodelist: tuple[str, ...] = ()
    """The nodes the user insists on (`--nodelist`)."""
    duration_seconds: float | None = None
    """Time on GPUs it needs in all, where that was declared."""
    search: Search | None = None
    """None: it belongs to none."""

    @property
    def adaptive(self) -> bool:
        """Whether the job may have another size than it asked for: one of a single node."""
        return self.size.least < self.size.most and self.nodes in (None, 1)


@value
class Placement:
    """GPUs a job uses, those that Slurm allocated, and with whom the used ones are shared."""

    gpus: GpuSet = frozenset()
    """Empty: off its GPUs."""
    allocation: GpuSet = frozenset()
    """Empty: none yet. Larger than `gpus`: it floats, and may run on any of them."""
    shares_with: frozenset[JobId] = frozenset()
    """Jobs on the same GPUs at the same time. Symmetric; empty: exclusive."""

    @property
    def held(self) -> GpuSet:
        """What it keeps from jobs that do not take turns with it: those that it is on, else all of them."""
        return self.gpus or self.allocation

    def guest(self, job_id: JobId) -> bool:
        """Whether another of the jobs on these GPUs, the one with the lowest id, stands for all of them."""
        return bool(self.shares_with) and min(self.shares_with) < job_id


NOWHERE = Placement()


@value
class FailedSuspends:
    """Suspends of a job that failed since it last left its GPUs."""

    tries: int
    since: float
    """The first of them."""
    why: str
    """What the last one failed with."""
    way_out: Unsuspendable = Unsuspendable.KEEP
    """What becomes of the job when it is to leave its GPUs the next time."""


class Unsaved(enum.IntEnum):
    """What a job has done since its state was written into its checkpoint store, by
    `suspend.save_every_seconds`. It is written, of a job that can now:"""

    LITTLE = 0
    """Not."""
    SOME = 1
    """Off its GPUs; of one that cannot there, before it leaves them."""
    MUCH = 2
    """On its GPUs, too, where no job waits for these."""
    TOO_MUCH = 3
    """In any case."""


@value(kw_only=True)
class Job:
    """A Gandiva job, from submission to its end. Growing counters are in `Usage`: a job that only ran on is
    equal to what it was."""

    id: JobId
    user: str
    request: Request
    submit_time: float
    """Seconds since the epoch; virtual seconds in simulation."""
    name: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    """Slurm's; while it waits all that its user named, separated by commas."""
    uid: int = -1
    priority_class: int = 0
    """A job of a higher class is never suspended for one of a lower class (SPEC 1.3)."""
    share_rank: float = 0.0
    """Between class and order, by the shares of users: the smaller the earlier. Negative: its user has no job
    on a node yet, and no limit of jobs per GPU keeps it from one."""
    phase: Phase
    placement: Placement = NOWHERE
    last: GpuSet = frozenset()
    """GPUs it uses, or used last where it is off them."""
    promised: GpuSet = frozenset()
    """The allocation that a plan chose for it and that Slurm has not made yet; also while it leaves another
    one for that."""
    promised_size: int = 0
    """GPUs of the gang there, where that is not what it asked for: it grows or shrinks. Else 0."""
    may_start: bool = False
    """A plan may put it on GPUs now."""
    obstacle: str = ""
    """Why it is not eligible, in words; empty: it is, or that is not known."""
    may_stop: bool = False
    """A plan may take it off its GPUs now."""
    leaving: bool = False
    """On its way off its GPUs: a plan counts them as free. Off them, on its way out of its allocation."""
    switching: bool = False
    """An operation on it is under way."""
    saving: bool = False
    """That one changes nothing of where it is: it writes its state into its checkpoint store."""
    may_move: bool = False
    """It may go on with other GPUs of its allocation than those it used last."""
    has_store: bool = False
    """All its sessions have a checkpoint store, and write its state there when they are asked to."""
    may_migrate: bool = False
    """A plan may put it on GPUs outside of its allocation: its state goes to a checkpoint, from its GPUs or
    from host memory, and it starts there again."""
    starts_anywhere: bool = False
    """Off its GPUs it can start anywhere, from a checkpoint: it keeps its own, or has a store for them. False
    while its state is in host memory."""
    may_resize: bool = False
    """A plan may give it another number of GPUs, within its size: it starts again from a checkpoint, and
    takes the GPUs that it finds then."""
    may_requeue: bool = True
    """Slurm would put it back into the queue."""
    may_resize_here: bool = False
    """A plan may give it another number of GPUs of its allocation, within its size: it goes on there. Of a
    job that waits for its allocation: it may turn out so once it runs."""
    kept_size: int = 0
    """GPUs that it must come back on where these are not as many as it asked for: what it left there binds
    it. Else 0."""
    held_until: float | None = None
    """An earlier operation failed: nothing is tried before this time."""
    failed_start: str = ""
    """Slurm's reason why it did not start this job the last time, or others at the same limit. Empty: it
    did, or was not asked yet."""
    behind: bool = False
    """Its last start failed not long ago: others come first."""
    refused_nodes: frozenset[str] = frozenset()
    """On these Slurm did not start it; they are left out for a while."""
    keeps_until: float | None = None
    """It keeps its GPUs until then, whatever its place in an order: what its last switch took bounds how
    often jobs change places."""
    failed_suspends: FailedSuspends | None = None
    unsaved: Unsaved = Unsaved.LITTLE
    saves_off: bool = True
    """It can write its state into its checkpoint store off its GPUs, as far as is known."""
    trespasses: bool = False
    """It has memory on GPUs that are not its own now, and has had it for a while."""
    start_time: float | None = None
    """First start, seconds since the epoch."""
    deadline_at: float | None = None
    """It is to have ended then, seconds since the epoch. None: its user said none."""
    memory_per_node_bytes: int = 0
    """Host memory Slurm allocates per node."""
    cpus_per_node: int = 0
    excluded_nodes: frozenset[str] = frozenset()
    required_nodes: frozenset[str] = frozenset()

    @property
    def places(self) -> tuple[object, ...]:
        """Equal for jobs that Slurm starts on the same nodes."""
        return self.partition, self.excluded_nodes, self.required_nodes, self.refused_nodes

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for jobs that fit in the same places, but for where Slurm has bound them."""
        request, host = self.request, (self.cpus_per_node, self.memory_per_node_bytes)
        return self.gpus, request.nodes, request.gpu_types, self.places, host

    @property
    def gpus(self) -> int:
        """GPUs of the gang: its present size on GPUs, else what it asked for."""
        return len(self.placement.gpus) or self.kept_size or self.request.size.wanted

    @property
    def allocation(self) -> GpuSet:
        """What Slurm allocated, or what is promised."""
        return self.placement.allocation or self.promised

    @property
    def floating(self) -> bool:
        """Allocated more GPUs than it uses: it runs on any of them in turn."""
        return len(self.placement.allocation) > self.gpus


@value(kw_only=True)
class Profile:
    """What was measured of a job. Zero: not known yet."""

    peak_memory_bytes: int = 0
    """The most on one GPU."""
    state_bytes: int = 0
    largest_tensor_bytes: int = 0
    utilization_fraction: float | None = None


UNPROFILED = Profile()


@value(kw_only=True)
class Usage:
    """What a job has had, up to the last time it started, stopped or moved. What it gets meanwhile follows
    from the time, so a job that only runs on has the same usage."""

    seconds: float = 0.0
    """On GPUs, the delay of every suspend included: it is charged to the job."""
    gpu_seconds: float = 0.0
    seconds_by_type: Mapping[str, float] = field(default_factory=empty)
    since: float | None = None
    """On its GPUs since then. None: it is off them."""
    gpus: int = 0
    """How many GPUs it has been on since then."""
    gpu_type: str = ""
    waited_seconds: float = 0.0
    """Off GPUs after its first start."""
    idle_since: float | None = None
    """It ran before, and has been off GPUs since then."""

    def ran(self, now: float) -> float:
        """Seconds on GPUs up to now."""
        return self.seconds if self.since is None else self.seconds + (now - self.since)

    def served(self, now: float) -> float:
        """GPU-seconds up to now."""
        if self.since is None:
            return self.gpu_seconds
        return self.gpu_seconds + self.gpus * (now - self.since)

    def waited(self, now: float) -> float:
        """Seconds off GPUs after its first start, up to now."""
        idle_since = now if self.idle_since is None else self.idle_since
        return self.waited_seconds + max(0.0, now - idle_since)

    def started(self, now: float, gpus: int, gpu_type: str = "") -> Usage:
        """It is on its GPUs from now on."""
        waited = self.waited(now)
        return replace(self, since=now, gpus=gpus, gpu_type=gpu_type, waited_seconds=waited, idle_since=None)

    def stopped(self, now: float) -> Usage:
        """It is off its GPUs from now on."""
        by_type = self.seconds_by_type
        if self.since is not None and self.gpu_type:
            known = by_type.get(self.gpu_type, 0.0)
            by_type = MappingProxyType({**by_type, self.gpu_type: known + (now - self.since)})
        return Usage(
            seconds=self.ran(now),
            gpu_seconds=self.served(now),
            seconds_by_type=by_type,
            waited_seconds=self.waited_seconds,
            idle_since=now,
        )


UNUSED = Usage()
