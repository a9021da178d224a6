# SPDX-License-Identifier: GPL-2.0-or-later
"""A Slurm cluster that exists in memory: the cluster port's third adapter.

It behaves like slurmctld where the controller can tell: jobs are submitted held, start some time after
their release on the GPUs they are bound to, run to their end while they may use their GPUs, and can be
suspended, resumed, requeued and cancelled. It runs on whatever clock its asyncio loop has.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuSet, JobId
from controller.policies.servers import by_node
from controller.slurm.port import ClusterView, JobState, SlurmGpu, SlurmJob, SlurmNode

# (Python 3.11 takes seven times as long to read these of their class.)
_PENDING, _RUNNING, _SUSPENDED = JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED
_COMPLETING, _ENDED = JobState.COMPLETING, JobState.ENDED


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
    account: str = "research"
    qos: str = "normal"
    state: JobState = _PENDING
    state_name: str = "PENDING"
    held: bool = True
    eligible: bool = True
    binding: GpuSet = frozenset()
    """What Slurm gave it."""
    nodes: tuple[str, ...] = ()
    """Those of the binding."""
    wanted: GpuSet = frozenset()
    """What it is bound to ask for."""
    start_time: float | None = None
    end_time: float | None = None
    restart_count: int = 0
    requeue: bool = True
    """False: `--no-requeue`."""
    comment: str = ""
    exit_code: int = 0
    """What its script returns when its work is done."""
    name: str = ""
    state_bytes: int = 2**30
    largest_tensor_bytes: int = 2**28
    checkpoint_seconds: float = 0.0
    """Writing its checkpoint, before it is requeued."""
    restart_seconds: float = 0.0
    """On its GPUs after a requeue, before it makes progress again."""
    overhead_seconds: float = 0.0
    """What is left of such time."""
    rate: float = 1.0
    """Progress per second on the GPUs it has now."""
    done_seconds: float = 0.0
    working_since: float | None = None
    memory_per_node_bytes: int = 0
    end_timer: asyncio.TimerHandle | None = None
    view: SlurmJob | None = None
    """As the port says it, while nothing has changed (kept by partial views only)."""


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


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
    rate: Callable[[SimulatedJob], float] = lambda _job: 1.0
    """How fast a job goes on the GPUs it is bound to, where 1 is the speed its work is measured in."""
    end_quantum_seconds: float = 0.0
    """Jobs end, and are off their GPUs, only at multiples of this time. 0: when their work is done."""
    partial: bool = False
    """Answer with what changed, after the first time."""
    tells_durations: bool = False
    clock: Callable[[], float] = _loop_time
    """Reads the time. Asking for the running loop each time costs a system call, which a simulation feels."""

    def __post_init__(self) -> None:
        self.jobs: dict[JobId, SimulatedJob] = {}
        self._touched: dict[JobId, None] = {}
        self._touched_nodes: dict[str, None] = dict.fromkeys(self.nodes)
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
        job = SimulatedJob(job_id, user, request, work_seconds, self.clock())
        for name, value in changes.items():
            setattr(job, name, value)
        self.add(job)
        return job_id

    def add(self, job: SimulatedJob) -> None:
        """The same with everything given; its id must be new."""
        self.jobs[job.id] = job
        self.touch(job.id)

    def submit_ordinary(self, node: str, gpus: int) -> JobId:
        """A job without Gandiva, on the first free whole GPUs of a node: it is not reported, its GPUs are."""
        job_id = JobId(self._next_id)
        self._next_id += 1
        held = dict(self.nodes[node].ordinary_gpus)
        free = [card.index for card in self.nodes[node].gpus if card.index not in held]
        self.set_node(node, ordinary_gpus={**held, **dict.fromkeys(free[:gpus], job_id)})
        return job_id

    def cancel(self, job_id: JobId) -> None:
        """`scancel`."""
        self._end(self.jobs[job_id], "CANCELLED")

    def set_node(self, name: str, **changes: object) -> None:
        """Drain, return, change a node."""
        self.nodes[name] = replace(self.nodes[name], **changes)  # type: ignore[arg-type]
        self._touched_nodes[name] = None

    def touch(self, job_id: JobId) -> None:
        """Something about this job, or of it on its nodes, changed."""
        self._touched[job_id] = None
        if (job := self.jobs.get(job_id)) is not None:
            job.view = None

    # -- the port -------------------------------------------------------------------------------------

    async def observe(self) -> ClusterView:
        await self._rpc()
        if self.partial:
            return self._what_changed()
        view = ClusterView(
            self.clock(), tuple(self._view(job) for job in self.jobs.values()), tuple(self.nodes.values())
        )
        if not self.keep_ended:
            for job_id in [j.id for j in self.jobs.values() if j.state is _ENDED]:
                del self.jobs[job_id]
        return view

    def _what_changed(self) -> ClusterView:
        touched = [self.jobs[job_id] for job_id in self._touched if job_id in self.jobs]
        gone = frozenset(job.id for job in touched if job.state is _ENDED and not self.keep_ended)
        jobs = tuple(self._view(job) for job in touched)
        nodes = tuple(self.nodes[name] for name in self._touched_nodes)
        for job_id in gone:
            del self.jobs[job_id]
        self._touched, self._touched_nodes = {}, {}
        return ClusterView(self.clock(), jobs, nodes, partial=True, gone=gone)

    async def job(self, job_id: JobId) -> SlurmJob:
        await self._rpc()
        return self._view(self._find(job_id))

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        per_node = by_node(binding)
        if len(set(per_node.values())) != 1:
            raise ValueError("a binding needs the same GPU indices on each node")
        await self._rpc()
        job = self._find(job_id)
        while job.state is _COMPLETING and not self.unavailable:
            # As the other adapters do: a requeued job is bound once it is through with its last run.
            await asyncio.sleep(0.05)
            job = self._find(job_id)
        if job.state is not _PENDING or not job.held:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending and held")
        job.wanted = binding
        self._answer()

    async def unbind(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is not _PENDING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending")
        job.wanted = frozenset()
        self._answer()

    async def release(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is _PENDING and job.held:
            job.held = False
            self.touch(job_id)
            self._after(self.costs.start_seconds, self._start, job)
        self._answer()

    async def hold(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is not _PENDING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not pending")
        job.held = True
        self.touch(job_id)
        self._answer()

    async def suspend(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is _RUNNING:
            self._to(job, _SUSPENDED)
        elif job.state is not _SUSPENDED:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not running")
        self._answer()

    async def resume(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is _SUSPENDED:
            self._to(job, _RUNNING)
        elif job.state is not _RUNNING:
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not suspended")
        self._answer()

    async def requeue(self, job_id: JobId) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state in (_PENDING, _COMPLETING):
            # On its way or there: an answer got lost, and the call is repeated.
            job.held, job.view = True, None
            self._answer()
            return
        if job.state not in (_RUNNING, _SUSPENDED):
            raise ClusterRefused(f"job {job_id} is {job.state_name}, not running")
        if not job.requeue:
            raise ClusterRefused(f"job {job_id} may not be requeued (--no-requeue)")
        job.held = True
        job.restart_count += 1
        job.overhead_seconds = job.restart_seconds
        self._to(job, _COMPLETING)
        self._after(self.costs.requeue_seconds + job.checkpoint_seconds, self._requeued, job)
        self._answer()

    async def end(self, job_id: JobId, reason: str) -> None:
        await self._rpc()
        job = self._find(job_id)
        if job.state is not _ENDED:
            job.comment = reason
            self._end(job, "CANCELLED")
        self._answer()

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- what goes on inside ----------------------------------------------------------------------------

    def work_changed(self, job: SimulatedJob) -> None:
        """Its state or its nodes' leave changed: account for the work done and time its end anew."""
        runs = job.state is _RUNNING
        if not runs and job.working_since is None and job.end_timer is None:
            return
        now = self.clock()
        if job.working_since is not None:
            worked = now - job.working_since
            if job.overhead_seconds:
                overhead = min(worked, job.overhead_seconds)
                job.overhead_seconds -= overhead
                worked -= overhead
            job.done_seconds += worked * job.rate
            job.working_since = None
        if job.end_timer is not None:
            job.end_timer.cancel()
            job.end_timer = None
        if runs and self.may_work(job):
            job.working_since = now
            job.rate = self.rate(job)
            if job.rate <= 0:
                return
            left_seconds = max(0.0, job.work_seconds - job.done_seconds) / job.rate
            end = now + job.overhead_seconds + left_seconds
            if self.end_quantum_seconds:
                end = math.ceil(end / self.end_quantum_seconds - 1e-9) * self.end_quantum_seconds
            said = "FAILED" if job.exit_code else "COMPLETED"
            job.end_timer = asyncio.get_running_loop().call_at(end, self._end, job, said)

    def _after(self, seconds: float, action: Callable[[SimulatedJob], None], job: SimulatedJob) -> None:
        """Now, where it costs nothing."""
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, action, job)
        else:
            action(job)

    def _start(self, job: SimulatedJob) -> None:
        if job.state is not _PENDING or job.held or not job.wanted:
            return
        nodes = tuple(by_node(job.wanted))
        if any(not self.nodes[name].up for name in nodes):
            return
        job.binding, job.nodes = job.wanted, nodes
        job.start_time = self.clock()
        self._to(job, _RUNNING)

    def _requeued(self, job: SimulatedJob) -> None:
        if job.state is _COMPLETING:
            job.binding, job.nodes, job.start_time = frozenset(), (), None
            self._to(job, _PENDING)

    def _end(self, job: SimulatedJob, state_name: str) -> None:
        if job.state is _ENDED:
            return
        job.end_time = self.clock()
        self._to(job, _ENDED, state_name)
        self.on_end(job)

    def _to(self, job: SimulatedJob, state: JobState, state_name: str = "") -> None:
        job.state = state
        job.state_name = state_name or state.value
        self.touch(job.id)
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

    def _view(self, job: SimulatedJob) -> SlurmJob:
        if not self.partial:
            return self._made_view(job)
        if job.view is None:
            job.view = self._made_view(job)
        return job.view

    def _made_view(self, job: SimulatedJob) -> SlurmJob:
        pending, ended = job.state is _PENDING, job.state is _ENDED
        # (By place, in the order of the fields: by name it takes three times as long.)
        return SlurmJob(
            job.id,
            job.user,
            job.uid,
            job.name or f"job{job.id}",
            job.account,
            "gpu",  # partition
            job.qos,
            job.state,
            job.state_name,
            "JobHeldUser" if job.held else "None",
            job.held,
            False,  # user_hold
            job.eligible,
            job.request,
            job.submit_time,
            job.start_time,
            job.end_time,
            frozenset() if pending else job.binding,
            False,  # exclusive_gpus
            job.nodes,
            1,  # cpus_per_node
            job.memory_per_node_bytes,
            job.restart_count,
            frozenset(),  # excluded_nodes
            frozenset(),  # required_nodes
            job.exit_code if ended else 0,
            job.work_seconds if self.tells_durations else None,
        )


@lru_cache(maxsize=4096)
def request_text(
    gpus: int = 1,
    *,
    nodes: int | None = 1,
    weight: float = 1.0,
    suspend: str | None = None,
    migrate: bool | None = None,
    model: str | None = None,
) -> str:
    """An `admin_comment` as the job_submit module writes it."""
    fields: Mapping[str, object] = (
        {"gpus_per_node": gpus // nodes, "nodes": nodes} if nodes else {"gpus": gpus, "gpus_per_node": None}
    )
    message: dict[str, object] = {"v": 1, **fields, "weight": weight}
    if suspend:
        message["suspend"] = suspend
    if migrate is not None:
        message["migrate"] = migrate
    if model:
        message["model"] = model
    return "gandiva:" + json.dumps(message, separators=(",", ":"))
