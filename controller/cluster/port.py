# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster port: all that the controller asks of Slurm, and nothing more.

Adapters: `pyslurm`, `command`, `simulated`. All three pass one contract suite, in
`tests/contract/cluster_port_contract.py`: the first two on a real Slurm (`tests/live/test_cluster_port.py`),
the third in the unit tests (`tests/contract/test_simulated_port.py`). Every method has a deadline of its own
inside the adapter and raises `ClusterUnavailable`, `ClusterRefused` or `UnknownJob`; after
`ClusterUnavailable` the call may have taken effect.
"""

import enum
from collections.abc import Mapping
from typing import Protocol

from controller.model import GpuSet, JobId, Share, value

LIMIT_REASONS = ("Assoc", "QOS")
"""How pending reasons begin where a limit is reached, such as AssocGrpGRES and QOSMaxJobsPerUserLimit."""

JOB_REASONS = ("Partition", "InvalidAccount", "InvalidQOS", "Licenses", "Dependency", "Reservation")
"""How pending reasons begin that are the job's own and that waiting does not end: other nodes are no help."""

NODE_REASONS = ("BadConstraints", "ReqNodeNotAvail", "Node")
"""How pending reasons begin that are about the nodes a job is bound to, and that last."""


class JobState(str, enum.Enum):
    """Slurm's base states, as far as the controller tells them apart. COMPLETING wins over the base state."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    ENDED = "ENDED"


ALLOCATED = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
"""States in which a job has nodes."""
ON_NODES = (JobState.RUNNING, JobState.SUSPENDED)
"""States in which its processes live there."""
OVER = frozenset({JobState.COMPLETING, JobState.ENDED})


@value
class ClusterGpu:
    """One GPU of a node as Slurm's GRES configuration names it: type `<model>_<index>`."""

    index: int
    model: str
    shards: int


@value(kw_only=True)
class ClusterNode:
    """A node as slurmctld reports it."""

    name: str
    gpus: tuple[ClusterGpu, ...]
    up: bool
    """Jobs may start here: not down, drained, draining, failing, in maintenance, not responding."""
    state: str
    """Slurm's own words, for people."""
    reason: str
    cpus: int
    """Those that jobs can get, and so the memory: without what Slurm keeps for the system."""
    memory_bytes: int
    memory_allocated_bytes: int
    ordinary_gpus: Mapping[int, JobId | None]
    """GPUs that ordinary jobs hold (GRES `gpu` in use), by index; the job where it can be told."""
    address: str = ""
    """Host name or address where the agent is reached."""
    features: tuple[str, ...] = ()
    switch: str = ""
    """The leaf switch it hangs on, where the adapter knows the topology."""
    partitions: Mapping[str, str] | None = None
    """Those that it is in, each with the reason in words why no Gandiva job of it starts; empty: they do.
    None: not known."""


@value(kw_only=True)
class ClusterJob:
    """A job as slurmctld reports it. Jobs without a Gandiva request are not reported at all,
    but for what they take from nodes."""

    id: JobId
    user: str
    uid: int
    name: str
    account: str
    partition: str
    """Of a pending job all that its user named, separated by commas."""
    qos: str
    state: JobState
    state_name: str
    """Slurm's own name of the state, such as COMPLETED or TIMEOUT."""
    reason: str
    """Slurm's pending reason, such as Dependency."""
    held: bool
    """Priority 0."""
    user_hold: bool
    """Its user, an operator, or Slurm holds it, beyond our own hold. Of a job that has an allocation: it is
    not to be resumed."""
    eligible: bool
    """No unmet dependency, begin time reached, array limit not reached."""
    obstacle: str = ""
    """What keeps it from starting beyond our hold, in words; empty: nothing."""
    request: str
    """`admin_comment`, unparsed: starts with `gandiva:`."""
    trial: str = ""
    """What its user says in its comment of it as a trial of a search, unparsed; empty: nothing."""
    submit_time: float
    start_time: float | None
    end_time: float | None
    """Known from COMPLETING on."""
    binding: GpuSet
    """GPUs allocated as shards. Empty while pending."""
    exclusive_gpus: bool
    """It runs on GRES `gpu`, not on shards: it got past the hold (released by an administrator)."""
    nodes: tuple[str, ...]
    cpus_per_node: int
    memory_per_node_bytes: int
    restart_count: int
    excluded_nodes: frozenset[str]
    exit_code: int = 0
    deadline_at: float | None = None
    """It is to have ended then, as its user said (`--deadline`)."""
    may_requeue: bool = True
    """Slurm would put it back into the queue: its owner has not said --no-requeue, nor changed that since."""
    duration_seconds: float | None = None
    """Time on GPUs it needs in all, where the adapter knows. Slurm knows the time limit of a job with a
    deadline, and cancels the job when that does not fit before the deadline any more."""


@value
class ClusterView:
    """One consistent look at Slurm, in full or as the difference from the one before."""

    time: float
    jobs: tuple[ClusterJob, ...]
    """Gandiva jobs: pending, allocated, and those that ended within slurmctld's MinJobAge."""
    nodes: tuple[ClusterNode, ...]
    complete: bool = True
    """False: only the jobs and nodes that are not as in the adapter's answer before."""
    gone: frozenset[JobId] = frozenset()
    """In a view that is not complete: jobs that Slurm does not know any more."""


class ClusterPort(Protocol):
    """What the controller needs of Slurm."""

    async def observe(self) -> ClusterView:
        """All Gandiva jobs and all GPU nodes, or those of them that changed since the answer before."""

    async def shares(self) -> tuple[Share, ...]:
        """Slurm's associations, accounts before what is in them; none where Slurm has no accounting."""

    async def job(self, job_id: JobId) -> ClusterJob:
        """One job, freshly. Raises UnknownJob."""

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        """Make a pending, held job ask for exactly these GPUs (as shards) on exactly these nodes, and let
        it start at once when it is released. The same indices on each node, or ValueError."""

    async def unbind(self, job_id: JobId) -> None:
        """Undo `bind`: the job asks for what its user asked for, anywhere."""

    async def release(self, job_id: JobId) -> None:
        """Let Slurm start it; before ordinary jobs, where GPUs are reserved for it. Harmless when it is
        released already."""

    async def hold(self, job_id: JobId) -> None:
        """Keep a pending job from starting. Raises ClusterRefused when it is not pending any more."""

    async def suspend(self, job_id: JobId) -> None:
        """Stop its processes and free its cores. Harmless when it is suspended already."""

    async def resume(self, job_id: JobId) -> None:
        """Undo `suspend`. Harmless when it runs already."""

    async def requeue(self, job_id: JobId) -> None:
        """Stop the job and put it back into the queue, held."""

    async def end(self, job_id: JobId, reason: str) -> None:
        """Cancel the job, whatever its state. Its user reads the reason in Slurm, behind the job's comment.
        Harmless when it is over already."""

    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        """Keep ordinary jobs off these GPUs for a job that is to be bound to them, for about so long at most.
        Takes the place of the job's reservation before, if any. The same indices on each node, or ValueError.
        Raises ClusterRefused when the GPUs cannot be had now, as an ordinary job has one."""

    async def unreserve(self, job_id: JobId) -> None:
        """Undo `reserve`. Harmless when nothing is reserved for the job, whether it is known or not."""

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        """What `reserve` has reserved, by the job that it is for, also for an earlier controller."""

    async def close(self) -> None:
        """Let go of connections and threads."""
