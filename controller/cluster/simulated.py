# SPDX-License-Identifier: GPL-2.0-or-later
"""A Slurm cluster that exists in memory: the cluster port's third adapter.

It behaves like slurmctld where the controller can tell: jobs are submitted held, start some time after
their release on the GPUs they are bound to, run to their end while they may use their GPUs, and can be
suspended, resumed, requeued and cancelled. It runs on whatever clock its asyncio loop has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.cluster.port import ClusterView, JobState, SlurmGpu, SlurmJob, SlurmNode
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuSet, JobId
from controller.policies.servers import by_node


@dataclass(frozen=True, slots=True)
class SlurmCosts:
    """How long Slurm takes, in seconds. Zero: ideal."""

    rpc_seconds: float = 0.0
    start_seconds: float = 0.0
    requeue_seconds: float = 0.0


@dataclass(slots=True)
class SimulatedJob:
    """A job of the simulated cluster."""

    id: JobId
    user: str
    request: str
    work_seconds: float
    """Time on its GPUs until it ends by itself."""
    submit_time: float
    uid: int = 2001
    state: JobState = JobState.PENDING
    state_name: str = "PENDING"
    held: bool = True
    eligible: bool = True
    binding: GpuSet = frozenset()
    """What Slurm gave it."""
    wanted: GpuSet = frozenset()
    """What it is bound to ask for."""
    start_time: float | None = None
    end_time: float | None = None
    restart_count: int = 0
    done_seconds: float = 0.0
    working_since: float | None = None
    memory_per_node_bytes: int = 0
    end_timer: asyncio.TimerHandle | None = None


def make_nodes(names: Iterable[str], gpus: int, model: str = "a100", shards: int = 16) -> list[SlurmNode]:
    """Identical nodes."""
    cards = tuple(SlurmGpu(i, model, shards) for i in range(gpus))
    return [
        SlurmNode(
            name=name,
            gpus=cards,
            up=True,
            state="IDLE",
            reason="",
            cpus=64,
            memory_bytes=2**40,
            memory_allocated_bytes=0,
            ordinary_gpus={},
            address=name,
        )
        for name in names
    ]


@dataclass
class SimulatedCluster:
    """Implements `ClusterPort`. `on_state` is told of every change of a job's state (by the nodes)."""

    nodes: dict[str, SlurmNode]
    costs: SlurmCosts = field(default_factory=SlurmCosts)
    on_state: Callable[[SimulatedJob], None] = lambda _job: None
    may_work: Callable[[SimulatedJob], bool] = lambda _job: True
    """Whether the nodes let this job use its GPUs just now."""
    on_end: Callable[[SimulatedJob], None] = lambda _job: None
    keep_ended: bool = True
    """Report ended jobs for ever, rather than once."""

    def __post_init__(self) -> None:
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.unavailable = False
        """Answer nothing: slurmctld is down."""
        self.lose_answers = 0
        """So many calls take effect and then fail to say so."""
        self._next_id = 1

    # -- what users and administrators do -------------------------------------------------------------

    def submit(self, request: str, work_seconds: float, user: str = "alice", **changes: object) -> JobId:
        """`sbatch --gandiva`: held, with its request."""
        job_id = JobId(self._next_id)
        self._next_id += 1
        job = SimulatedJob(job_id, user, request, work_seconds, self._now())
        for name, value in changes.items():
            setattr(job, name, value)
        self.jobs[job_id] = job
        return job_id

    def cancel(self, job_id: JobId) -> None:
        """`scancel`."""
        self._end(self.jobs[job_id], "CANCELLED")

    def set_node(self, name: str, **changes: object) -> None:
        """Drain, return, change a node."""
        self.nodes[name] = replace(self.nodes[name], **changes)  # type: ignore[arg-type]

    # -- the port -------------------------------------------------------------------------------------

    async def observe(self) -> ClusterView:
        await self._rpc()
        view = ClusterView(
            self._now(), tuple(self._view(job) for job in self.jobs.values()), tuple(self.nodes.values())
        )
        if not self.keep_ended:
            for job_id in [j.id for j in self.jobs.values() if j.state is JobState.ENDED]:
                del self.jobs[job_id]
        return view

    async def job(self, job_id: JobId) -> SlurmJob:
        await self._rpc()
        return self._view(self._find(job_id))

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        per_node = by_node(binding)
        if not per_node or len({tuple(ordinals) for ordinals in per_node.values()}) > 1:
            raise ValueError("a binding needs the same GPU indices on each node")
        await self._rpc()
        job = self._find(job_id)
        if job.state is not JobState.PENDING or not job.held:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending and held")
        job.wanted = binding
        self._answer()

    async def unbind(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is not JobState.PENDING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending")
        job.wanted = frozenset()
        self._answer()

    async def release(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is JobState.PENDING and job.held:
            job.held = False
            asyncio.get_running_loop().call_later(self.costs.start_seconds, self._start, job)
        self._answer()

    async def hold(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is not JobState.PENDING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending")
        job.held = True
        self._answer()

    async def suspend(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is JobState.RUNNING:
            self._to(job, JobState.SUSPENDED)
        elif job.state is not JobState.SUSPENDED:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not running")
        self._answer()

    async def resume(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is JobState.SUSPENDED:
            self._to(job, JobState.RUNNING)
        elif job.state is not JobState.RUNNING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not suspended")
        self._answer()

    async def requeue(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state not in (JobState.RUNNING, JobState.SUSPENDED):
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not running")
        job.held = True
        job.restart_count += 1
        self._to(job, JobState.COMPLETING)
        asyncio.get_running_loop().call_later(self.costs.requeue_seconds, self._requeued, job)
        self._answer()

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- what goes on inside ----------------------------------------------------------------------------

    def work_changed(self, job: SimulatedJob) -> None:
        """Its state or its nodes' leave changed: account for the work done and time its end anew."""
        now = self._now()
        if job.working_since is not None:
            job.done_seconds += now - job.working_since
            job.working_since = None
        if job.end_timer is not None:
            job.end_timer.cancel()
            job.end_timer = None
        if job.state is JobState.RUNNING and self.may_work(job):
            job.working_since = now
            left_seconds = max(0.0, job.work_seconds - job.done_seconds)
            job.end_timer = asyncio.get_running_loop().call_later(left_seconds, self._end, job, "COMPLETED")

    def _start(self, job: SimulatedJob) -> None:
        if job.state is not JobState.PENDING or job.held or not job.wanted:
            return
        if any(not self.nodes[name].up for name in by_node(job.wanted)):
            return
        job.binding = job.wanted
        if job.start_time is None:
            job.start_time = self._now()
        self._to(job, JobState.RUNNING)

    def _requeued(self, job: SimulatedJob) -> None:
        if job.state is JobState.COMPLETING:
            job.binding = frozenset()
            self._to(job, JobState.PENDING)

    def _end(self, job: SimulatedJob, state_name: str) -> None:
        if job.state is JobState.ENDED:
            return
        job.end_time = self._now()
        self._to(job, JobState.ENDED, state_name)
        self.on_end(job)

    def _to(self, job: SimulatedJob, state: JobState, state_name: str = "") -> None:
        job.state = state
        job.state_name = state_name or state.value
        self.on_state(job)
        self.work_changed(job)

    def _find(self, job_id: JobId) -> SimulatedJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownJob(f"job {job_id} is not known")
        return job

    async def _rpc(self) -> None:
        if self.costs.rpc_seconds:
            await asyncio.sleep(self.costs.rpc_seconds)
        if self.unavailable:
            raise ClusterUnavailable("slurmctld does not answer")

    def _answer(self) -> None:
        """After a call took effect: its answer may get lost."""
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ClusterUnavailable("no answer within the deadline")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _view(self, job: SimulatedJob) -> SlurmJob:
        return SlurmJob(
            id=job.id,
            user=job.user,
            uid=job.uid,
            name=f"job{job.id}",
            account="research",
            partition="gpu",
            qos="normal",
            state=job.state,
            state_name=job.state_name,
            reason="JobHeldUser" if job.held else "None",
            held=job.held,
            user_hold=False,
            eligible=job.eligible,
            request=job.request,
            submit_time=job.submit_time,
            start_time=job.start_time,
            end_time=job.end_time,
            binding=job.binding if job.state is not JobState.PENDING else frozenset(),
            exclusive_gpus=False,
            nodes=tuple(sorted(by_node(job.binding))),
            cpus_per_node=1,
            memory_per_node_bytes=job.memory_per_node_bytes,
            restart_count=job.restart_count,
            excluded_nodes=frozenset(),
            required_nodes=frozenset(),
        )


def request_text(
    gpus: int = 1, *, nodes: int | None = 1, weight: float = 1.0, suspend: str | None = None
) -> str:
    """An `admin_comment` as the job_submit module writes it."""
    fields: Mapping[str, object] = (
        {"gpus_per_node": gpus // nodes, "nodes": nodes} if nodes else {"gpus": gpus, "gpus_per_node": None}
    )
    message: dict[str, object] = {"v": 1, **fields, "weight": weight}
    if suspend:
        message["suspend"] = suspend
    return "gandiva:" + json.dumps(message, separators=(",", ":"))
