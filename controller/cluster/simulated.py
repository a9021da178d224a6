# SPDX-License-Identifier: GPL-2.0-or-later
"""A Slurm cluster that exists in memory: the cluster port's third adapter.

It behaves like slurmctld where the controller can tell: jobs are submitted held, start some time after
their release on the GPUs they are bound to, run to their end while they may use their GPUs, and can be
suspended, resumed, requeued and cancelled. It runs on whatever clock its asyncio loop has.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.cluster.gres import bound_gres
from controller.cluster.port import ON_NODES, OVER, ClusterGpu, ClusterJob, ClusterNode, ClusterView, JobState
from controller.cluster.progress import Progress
from controller.cluster.simulated_job import PARTITION, SimulatedJob, request_text
from controller.errors import ClusterRefused, UnknownJob
from controller.model import GpuSet, JobId, Share, by_node, value

__all__ = ["SimulatedCluster", "SimulatedJob", "SlurmCosts", "idle_node", "make_nodes", "request_text"]


def idle_node(
    name: str,
    model: str = "a100",
    gpus: int = 1,
    switch: str = "",
    cpus: int = 64,
    memory_bytes: int = 2**40,
    shards: int = 16,
) -> ClusterNode:
    """A node that is up, without jobs."""
    return ClusterNode(
        name=name,
        gpus=tuple(ClusterGpu(i, model, shards) for i in range(gpus)),
        up=True,
        state="IDLE",
        reason="",
        cpus=cpus,
        memory_bytes=memory_bytes,
        memory_allocated_bytes=0,
        ordinary_gpus={},
        address=name,
        switch=switch,
        partitions={PARTITION: ""},
    )


def make_nodes(names: Iterable[str], gpus: int) -> list[ClusterNode]:
    return [idle_node(name, gpus=gpus) for name in names]


def in_one_partition(partition: str, nodes: Sequence[ClusterNode]) -> bool:
    """Whether all these nodes are in one of a job's partitions. `partition`: as in `SimulatedJob`."""
    known = [node.partitions for node in nodes if node.partitions is not None]
    return not partition or any(all(name in each for each in known) for name in partition.split(","))


@value
class SlurmCosts:
    """How long Slurm takes, in seconds. Zero: ideal."""

    rpc_seconds: float = 0.0
    start_seconds: float = 0.0
    requeue_seconds: float = 0.0


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def halved(_job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
    """Jobs on the same GPUs get equal parts of them."""
    return 1 / (1 + len(beside))


@dataclass
class SimulatedCluster:
    """Implements `ClusterPort`. What the nodes decide about it hears from them: see the hooks."""

    nodes: dict[str, ClusterNode]
    costs: SlurmCosts = field(default_factory=SlurmCosts)
    on_state: Callable[[SimulatedJob], None] = lambda _job: None
    """Hook: told of every change of a job's state."""
    may_work: Callable[[SimulatedJob], bool] = lambda _job: True
    """Hook: whether the nodes let this job use its GPUs just now."""
    company: Callable[[SimulatedJob], Sequence[SimulatedJob]] = lambda _job: ()
    """Hook: other jobs that are to use GPUs of this one."""
    on_end: Callable[[SimulatedJob], None] = lambda _job: None
    keep_ended: bool = True
    """Report ended jobs for ever, rather than once."""
    rate: Callable[[SimulatedJob, Sequence[SimulatedJob]], float] = halved
    """How fast a job goes on its GPUs, beside these jobs. 1: the speed that its work is measured in."""
    end_quantum_seconds: float = 0.0
    """Jobs end, and are off their GPUs, only at multiples of this time. 0: when their work is done."""
    progress: Progress | None = None
    """What ends jobs. None: they end when their work is done."""
    deltas: bool = False
    """Answer with what changed since the answer before, where there was one."""
    tells_durations: bool = False
    tree: tuple[Share, ...] = ()
    """The associations: as a test gives them, or none."""
    clock: Callable[[], float] = _loop_time

    def __post_init__(self) -> None:
        self.jobs: dict[JobId, SimulatedJob] = {}
        self._touched: dict[JobId, None] = {}
        self._touched_nodes: dict[str, None] = {}
        self._ended: frozenset[JobId] = frozenset()
        """Jobs that the last answer showed as ended, and the next one does not show."""
        self._answered = False
        self.reserved: dict[JobId, GpuSet] = {}
        """GPUs that ordinary jobs do not get, by the job that they are kept for."""
        self._next_id = 1
        if self.progress is not None:
            self.progress.attach(self.clock, self._end)

    def submit(self, request: str, work_seconds: float, user: str = "alice", **changes: Any) -> JobId:
        """`sbatch --gandiva`: held, with its request."""
        job_id = JobId(self._next_id)
        self._next_id += 1
        self.add(SimulatedJob(job_id, user, request, work_seconds, self.clock(), **changes))
        return job_id

    def add(self, job: SimulatedJob) -> None:
        """The same with everything given; its id must be new."""
        self.jobs[job.id] = job
        self.touch(job.id)

    def cancel(self, job_id: JobId) -> None:
        """`scancel`."""
        self._end(self.jobs[job_id], "CANCELLED")

    def touch(self, job_id: JobId) -> None:
        """Something about this job changed: the next answer shows it."""
        self._touched[job_id] = None

    async def observe(self) -> ClusterView:
        await self._rpc()
        complete, gone = not (self.deltas and self._answered), self._ended
        for job_id in gone:
            del self.jobs[job_id]
        shown = [self.jobs[i] for i in (self.jobs if complete else self._touched) if i in self.jobs]
        nodes = [self.nodes[name] for name in (self.nodes if complete else self._touched_nodes)]
        if not self.keep_ended:
            self._ended = frozenset(job.id for job in shown if job.state is JobState.ENDED)
        self._touched, self._touched_nodes, self._answered = {}, {}, True
        jobs = tuple(job.view(tells_duration=self.tells_durations) for job in shown)
        return ClusterView(self.clock(), jobs, tuple(nodes), complete, frozenset() if complete else gone)

    async def shares(self) -> tuple[Share, ...]:
        await self._rpc()
        return self.tree

    async def job(self, job_id: JobId) -> ClusterJob:
        await self._rpc()
        return self._find(job_id).view(tells_duration=self.tells_durations)

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        self._require_gres(job_id, binding)
        job = await self._called(job_id)
        while job.state is JobState.COMPLETING:
            # As the other adapters do: a requeued job is bound once it is through with its last run.
            await asyncio.sleep(0.05)
            job = self._find(job_id)
        if job.state is not JobState.PENDING or not job.held:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending and held")
        job.wanted = binding

    def _require_gres(self, job_id: JobId, gpus: GpuSet) -> None:
        """What the other adapters refuse: raises ValueError where Slurm's GRES cannot say these GPUs."""
        names = by_node(gpus).keys()
        if gone := sorted(names - self.nodes.keys()):
            raise ClusterRefused(f"job {job_id}: {', '.join(gone)} is no node with GPUs of ours (any more)")
        bound_gres(gpus, {name: self.nodes[name].gpus[0].model for name in names})

    async def unbind(self, job_id: JobId) -> None:
        job = await self._called(job_id, JobState.PENDING)
        job.wanted = frozenset()

    async def release(self, job_id: JobId) -> None:
        job = await self._called(job_id)
        if job.state is JobState.PENDING and job.held:
            job.held = False
            self.touch(job_id)
            self._after(self.costs.start_seconds, self._start, job)

    async def hold(self, job_id: JobId) -> None:
        job = await self._called(job_id, JobState.PENDING)
        job.held = True
        self.touch(job_id)

    async def suspend(self, job_id: JobId) -> None:
        job = await self._called(job_id, *ON_NODES)
        if job.state is JobState.RUNNING:
            job.suspended_at = self.clock()
            self._to(job, JobState.SUSPENDED)

    async def resume(self, job_id: JobId) -> None:
        job = await self._called(job_id, JobState.SUSPENDED, JobState.RUNNING)
        if job.state is JobState.SUSPENDED:
            self._to(job, JobState.RUNNING)

    async def requeue(self, job_id: JobId) -> None:
        job = await self._called(job_id, *ON_NODES, JobState.PENDING, JobState.COMPLETING)
        if not job.requeue and job.state in ON_NODES:
            raise ClusterRefused(f"job {job_id} may not be requeued (--no-requeue)")
        job.held = True
        self.touch(job_id)
        if job.state in ON_NODES:  # else an answer got lost, and the call is repeated
            job.restart_count += 1
            self._to(job, JobState.COMPLETING)
            job.overhead_seconds = job.restart_seconds
            self._after(self.costs.requeue_seconds + job.checkpoint_seconds, self._requeued, job)

    async def end(self, job_id: JobId, reason: str) -> None:
        job = await self._called(job_id)
        if job.state is not JobState.ENDED:
            job.comment = reason
            self._end(job, "CANCELLED")

    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        self._require_gres(job_id, gpus)
        await self._called(job_id)
        self.reserved.pop(job_id, None)
        if not self._room_for(gpus):
            raise ClusterRefused(f"job {job_id}: the GPUs to reserve for it are busy")
        self.reserved[job_id] = gpus
        self._after(seconds, self._reservation_ends, job_id, gpus)

    async def unreserve(self, job_id: JobId) -> None:
        await self._rpc()
        self.reserved.pop(job_id, None)

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        await self._rpc()
        return dict(self.reserved)

    def _reservation_ends(self, job_id: JobId, gpus: GpuSet) -> None:
        if self.reserved.get(job_id) is gpus:
            del self.reserved[job_id]

    def _room_for(self, gpus: GpuSet) -> bool:
        """Whether Slurm can allocate a shard of each."""
        nodes = {gpu.node: self.nodes[gpu.node] for gpu in gpus}
        up = all(node.up for node in nodes.values())
        return up and not any(gpu.ordinal in nodes[gpu.node].ordinary_gpus for gpu in gpus)

    async def close(self) -> None:
        """Nothing to let go of."""

    def work_changed(self, job: SimulatedJob) -> None:
        """Its state or its nodes' leave changed: account for the work done, by it and by the jobs on the same
        GPUs, and time their ends anew."""
        company = self.company(job)
        self._work(job, company)
        for other in company:
            self._work(other, self.company(other))

    def _work(self, job: SimulatedJob, company: Sequence[SimulatedJob]) -> None:
        now = self.clock()
        job.stop_work(now)
        if self.progress is not None:
            self.progress.stop(job)
        if self._works(job):
            beside = [other for other in company if self._works(other)]
            end = job.begin_work(now, self.rate(job, beside))
            if end == math.inf:
                return
            if self.progress is not None:
                self.progress.begin(job, now)
                return
            if self.end_quantum_seconds:
                end = math.ceil(end / self.end_quantum_seconds - 1e-9) * self.end_quantum_seconds
            said = "FAILED" if job.exit_code else "COMPLETED"
            job.end_timer = asyncio.get_running_loop().call_at(end, self._end, job, said)

    def _works(self, job: SimulatedJob) -> bool:
        return job.state is JobState.RUNNING and self.may_work(job)

    def _after(self, seconds: float, action: Callable[..., None], *given: object) -> None:
        """Now, where it costs nothing."""
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, action, *given)
        else:
            action(*given)

    def _start(self, job: SimulatedJob) -> None:
        if job.state is not JobState.PENDING or job.held or not (job.wanted and self._room_for(job.wanted)):
            return
        if not in_one_partition(job.partition, [self.nodes[name] for name in by_node(job.wanted)]):
            job.reason = "BadConstraints"
            return
        job.binding, job.nodes, job.start_time = job.wanted, tuple(by_node(job.wanted)), self.clock()
        self._to(job, JobState.RUNNING)

    def _requeued(self, job: SimulatedJob) -> None:
        if job.state is JobState.COMPLETING:
            job.binding, job.nodes, job.start_time = frozenset(), (), None
            self._to(job, JobState.PENDING)

    def _end(self, job: SimulatedJob, state_name: str, end_time: float | None = None) -> None:
        """`end_time`: when its work was done, if that was before now. Slurm takes a job that ends while it is
        suspended for one that ended then."""
        if job.state is JobState.ENDED:
            return
        if job.state is JobState.SUSPENDED:
            end_time = job.suspended_at
        job.end_time = self.clock() if end_time is None else end_time
        self._to(job, JobState.ENDED, state_name)
        self.on_end(job)

    def _to(self, job: SimulatedJob, state: JobState, state_name: str = "") -> None:
        job.state = state
        job.state_name = state_name or state.value
        self.touch(job.id)
        left = self.company(job) if state in OVER else ()
        self.on_state(job)
        self.work_changed(job)
        for other in left:
            self._work(other, self.company(other))

    def _find(self, job_id: JobId) -> SimulatedJob:
        if job_id not in self.jobs:
            raise UnknownJob(f"job {job_id} is not known")
        return self.jobs[job_id]

    async def _called(self, job_id: JobId, *states: JobState) -> SimulatedJob:
        """The job that a call is to change. `states`: else it is refused."""
        await self._rpc()
        job = self._find(job_id)
        if states and job.state not in states:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not {states[0].value.lower()}")
        return job

    async def _rpc(self) -> None:
        if self.costs.rpc_seconds:
            await asyncio.sleep(self.costs.rpc_seconds)
