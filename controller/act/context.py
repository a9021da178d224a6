# SPDX-License-Identifier: GPL-2.0-or-later
"""What every operation works with: the ports, the ledger, the recorder, and calls that several make."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller.act.ledger import Ledger
from controller.act.recorder import Recorder, Step
from controller.act.reservations import Reservations
from controller.cluster.port import OVER, ClusterJob, ClusterPort, JobState
from controller.errors import ClusterError, ClusterUnavailable, GandivaError, NodeError, UnknownJob
from controller.model import GpuId, GpuSet, Job, JobId, Snapshot, by_node, gpu_type
from controller.model.clock import Clock
from controller.nodes.port import NodePort
from controller.observe.costs import Kind, MeasuredCosts
from controller.observe.jobs import InFlight
from controller.observe.memory import JobMemories
from controller.settings.schema import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

NODE_CALL_SECONDS = 15.0
PLACE_RETRY_SECONDS = 10.0
"""After a failed start or resume nothing is tried with a job for so long."""


class JobEnded(GandivaError):
    """The job ended by itself meanwhile; nothing is wrong."""


@dataclass
class Context:
    """The ports and the books. One for all operations of a controller."""

    cluster: ClusterPort
    nodes: NodePort
    clock: Clock
    memory: JobMemories
    recorder: Recorder
    settings: Settings
    ledger: Ledger = field(default_factory=Ledger)
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)
    seen: Snapshot = field(default_factory=lambda: Snapshot(time=0.0, nodes={}, jobs={}))
    """The last snapshot."""
    left: dict[JobId, Mapping[GpuId, int]] = field(default_factory=dict)
    """Bytes that jobs have left on their GPUs since that was seen."""
    refused: dict[JobId, tuple[int, str]] = field(default_factory=dict)
    """Jobs that Slurm refuses to suspend: how often in a row, and what it says."""

    def __post_init__(self) -> None:
        self.reservations = Reservations(self.cluster)

    @property
    def suspends_in_slurm(self) -> bool:
        """Suspended jobs are suspended in Slurm too (`suspend.mode`)."""
        return self.settings.suspend.mode == "slurm"

    # -- slices ---------------------------------------------------------------------------------------

    def begin_slice(self, job_id: JobId, gpus: GpuSet, began: float, since: float | None = None) -> None:
        """The job may use these GPUs from now on, or since then. `began`: when its way onto them did."""
        now, memory = self.clock.now(), self.memory.change(job_id)
        switch_seconds = memory.off_seconds + (now - began)
        ratio = self.settings.suspend.preempt_exempt_ratio
        if switch_seconds and ratio:
            memory.keeps_until = now + ratio * switch_seconds
        since = now if since is None else since
        if self.memory.started(job_id, gpus, gpu_type(gpus, self.seen.nodes), since):
            self.recorder.slice_begins(job_id, gpus, since)

    def end_slice(self, job_id: JobId, reason: str, began: float, at: float | None = None) -> None:
        """The job is known to have left its GPUs, now or then. `began`: when its way off them did."""
        now, memory = self.clock.now(), self.memory.change(job_id)
        memory.off_seconds = now - began
        at = now if at is None else at
        if self.memory.stopped(job_id, at):
            memory.suspends += 1
            self.recorder.slice_ends(job_id, reason, at)

    def took(self, job: Job, kind: Kind, began: float) -> None:
        """What has just been done with a job, from then to now."""
        self.costs.see(job.request.model, kind, max(0.0, self.clock.now() - began))

    def beside(self, job_id: JobId) -> frozenset[JobId]:
        """Jobs that may have memory on the GPUs of this one: plans for each say so."""
        others = self.memory.of(job_id).beside
        return frozenset(other for other in others if job_id in self.memory.of(other).beside)

    # -- calls ----------------------------------------------------------------------------------------

    async def patiently(self, call: Callable[[JobId], Awaitable[None]], job_id: JobId) -> None:
        """A call to Slurm that is harmless to repeat: again while Slurm is unavailable, a few times."""
        for pause_seconds in (0.2, 1.0, 3.0):
            try:
                await call(job_id)
                return
            except ClusterUnavailable as unavailable:
                log.info("job %s: %s; trying again", job_id, unavailable)
                await asyncio.sleep(pause_seconds)
        await call(job_id)

    async def has_ended(self, job_id: JobId) -> bool:
        """Whether Slurm says so."""
        try:
            return (await self.cluster.job(job_id)).state in OVER
        except UnknownJob:
            return True
        except ClusterError:
            return False

    async def until(self, job_id: JobId, after: str, *states: JobState) -> ClusterJob:
        """The job once it is in one of these states. Raises ClusterUnavailable at the start deadline."""
        deadline = self.clock.now() + self.settings.suspend.start_deadline_seconds
        pause_seconds = 0.05
        while (seen := await self.cluster.job(job_id)).state not in states:
            if self.clock.now() >= deadline:
                raise ClusterUnavailable(f"job {job_id} is still {seen.state_name} after {after}")
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(1.0, pause_seconds * 1.5)
        return seen

    async def on_nodes(self, job: Job, call: Callable[[str], Coroutine[Any, Any, T]]) -> dict[str, T]:
        """One call for each node of the job's allocation."""
        names = sorted(by_node(job.placement.allocation))
        return dict(zip(names, await gather(call(name) for name in names), strict=True))

    async def stop_processes(self, job: Job) -> None:
        """The job's processes stop, and are seen to have no memory on its GPUs: only then these are free."""
        await self.on_nodes(
            job, lambda node: self.nodes.stop(node, job.id, deadline_seconds=NODE_CALL_SECONDS)
        )

    def alone_seconds(self, failure: GandivaError) -> float:
        """How long a job is left alone that could not be taken off its GPUs. A reading of NVML that failed is
        no fault of the job's, and the next one may do."""
        internal = isinstance(failure, NodeError) and failure.kind == "internal"
        return PLACE_RETRY_SECONDS if internal else self.settings.suspend.retry_after_seconds

    def hold(self, job_id: JobId, seconds: float, kind: str, message: str) -> None:
        """Try nothing with this job for so long; say why."""
        now = self.clock.now()
        self.memory.change(job_id).held_until = now + seconds
        self.recorder.event(kind, message, now, job_id)


@dataclass
class Operation:
    """One action under way: its job as it was when it began."""

    context: Context
    job: Job
    number: int
    flight: InFlight
    task: asyncio.Task[None] = field(init=False)
    abandoned: bool = False

    def step(self, step: Step) -> None:
        if self.abandoned:
            # A call that ends as it is cancelled may swallow that: `asyncio.wait_for` before Python 3.12.
            raise asyncio.CancelledError
        self.context.recorder.operation_step(self.number, step, self.context.clock.now())


async def put(
    call: Callable[..., Coroutine[Any, Any, None]],
    job_id: JobId,
    gpus: GpuSet,
    allocation: GpuSet,
    beside: frozenset[JobId],
    deadline_seconds: float,
    **more: int,
) -> None:
    """A call of `NodePort` with a `Place`, at each node of the allocation. `more`: what else it takes."""
    wanted = by_node(gpus)
    await gather(
        call(
            node,
            job_id,
            gpus=wanted.get(node, ordinals),
            binding=ordinals,
            beside=beside,
            deadline_seconds=deadline_seconds,
            **more,
        )
        for node, ordinals in by_node(allocation).items()
    )


async def gather(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them to their end, then the first error if there was one: an undo must not overtake a call that
    is still going on at another node."""
    waiting, done = list(calls), list[T]()
    if len(waiting) == 1:
        return [await waiting[0]]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
