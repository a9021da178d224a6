# SPDX-License-Identifier: GPL-2.0-or-later
"""GPU nodes that exist in memory, for the simulated cluster: the node port's second adapter.

They keep what real agents keep (who is on which GPU, who has yielded) and check on every change that no two
jobs have memory on one GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from controller.cluster.port import JobState, SlurmGpu
from controller.cluster.simulated import SimulatedCluster, SimulatedJob
from controller.errors import NodeError, NodeUnreachable
from controller.model import GpuId, JobId
from controller.nodes.port import (
    GpuProcess,
    GpuSample,
    Living,
    NodeJob,
    NodePhase,
    NodeSample,
    Offload,
    Pause,
    RankSample,
    RankState,
)
from controller.policies.servers import by_node

_MEMORY_BYTES = 80 * 2**30
_WITH_PROCESSES = (JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """How long things take on a node, in seconds. Zero: ideal."""

    step_seconds: float = 0.0
    """Until the next mini-batch ends."""
    offload_seconds: float = 0.0
    restore_seconds: float = 0.0


@dataclass(slots=True)
class _Block:
    """A control block."""

    gpus: tuple[int, ...]
    phase: NodePhase = NodePhase.RUNNING
    stopped: bool = False
    """At a step boundary, its state on the way to host memory."""


@dataclass
class SimulatedNodes:
    """Implements `NodePort` on top of a `SimulatedCluster`."""

    cluster: SimulatedCluster
    costs: NodeCosts = field(default_factory=NodeCosts)
    movable: bool = True

    def __post_init__(self) -> None:
        self._blocks: dict[str, dict[JobId, _Block]] = {name: {} for name in self.cluster.nodes}
        self._touched: dict[str, None] = dict.fromkeys(self.cluster.nodes)
        self._idle: dict[str, NodeSample] = {}
        """The sample of a node that nothing is on."""
        self.violations: list[str] = []
        """Instants at which two jobs had memory on one GPU. Must stay empty."""
        self.unreachable: set[str] = set()
        self.stubborn: set[JobId] = set()
        """Jobs that never reach a step boundary and that the driver cannot checkpoint."""
        self.idle: set[JobId] = set()
        """Jobs that have not touched their GPU yet (`empty` in the protocol)."""
        self.lose_answers = 0
        self.switches = 0
        self.cluster.may_work = self._may_work
        self.cluster.on_state = self._on_state

    # -- the port -------------------------------------------------------------------------------------

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The nodes are those of the cluster."""

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        now = self.cluster.clock()
        if self.cluster.partial:
            names, self._touched = self._touched, {}
        else:
            names = dict.fromkeys(self.cluster.nodes)
        made: dict[Hashable, NodeJob] = {}
        return {name: self._sample(name, now, made) for name in names}

    async def prepare(
        self,
        node: str,
        job_id: JobId,
        *,
        uid: int,
        gpus: Sequence[int],
        binding: Sequence[int],
        deadline_seconds: float,
    ) -> None:
        self._reach(node)
        self._refuse_busy(node, job_id, gpus)
        self._blocks[node][job_id] = _Block(tuple(gpus))
        self._touch(node, job_id)
        self._answer(node)

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        block = self._block(node, job_id)
        if block.phase is NodePhase.YIELDED:
            return Pause(floor_step, True)
        block.phase = NodePhase.PAUSING
        self._touch(node, job_id)
        if job_id in self.stubborn:
            await asyncio.sleep(wait_seconds)
            if sole:
                block.phase = NodePhase.RUNNING
                self._touch(node, job_id)
                raise NodeError(node, "deadline", f"job {job_id} reached no step boundary")
            return Pause(floor_step, False)
        if self.costs.step_seconds:
            await asyncio.sleep(self.costs.step_seconds)
        self._answer(node)
        return Pause(floor_step, True)

    async def offload(
        self,
        node: str,
        job_id: JobId,
        *,
        residual_limit_bytes: int,
        release_context: bool,
        deadline_seconds: float,
    ) -> Offload:
        block = self._block(node, job_id)
        if job_id in self.idle:
            return Offload(0, 0.0, empty=True)
        if block.phase is not NodePhase.YIELDED:
            if self.costs.offload_seconds:
                block.stopped = True
                self._work_changed(job_id)
                await asyncio.sleep(self.costs.offload_seconds)
            block = self._block(node, job_id)
            block.phase = NodePhase.YIELDED
            self._touch(node, job_id)
            self.switches += 1
            self._work_changed(job_id)
        self._answer(node)
        return Offload(0, self.costs.offload_seconds)

    async def checkpoint(
        self, node: str, job_id: JobId, *, residual_limit_bytes: int, deadline_seconds: float
    ) -> Offload:
        if job_id in self.stubborn:
            raise NodeError(node, "unsupported", f"job {job_id} cannot be checkpointed by the driver")
        return await self.offload(
            node,
            job_id,
            residual_limit_bytes=residual_limit_bytes,
            release_context=True,
            deadline_seconds=deadline_seconds,
        )

    async def verify_empty(self, node: str, job_id: JobId, *, stop: bool, deadline_seconds: float) -> None:
        block = self._block(node, job_id)
        if not stop and self.cluster.jobs[job_id].state is not JobState.SUSPENDED:
            raise NodeError(node, "deadline", f"job {job_id} has processes that still run")
        block.phase = NodePhase.YIELDED
        self._touch(node, job_id)

    async def resume(
        self,
        node: str,
        job_id: JobId,
        *,
        gpus: Sequence[int],
        binding: Sequence[int],
        deadline_seconds: float,
    ) -> None:
        block = self._block(node, job_id)
        if self.cluster.jobs[job_id].state is JobState.SUSPENDED:
            raise NodeError(node, "driver", f"job {job_id} is frozen: Slurm must resume it first")
        if block.phase is NodePhase.YIELDED:
            self._refuse_busy(node, job_id, gpus)
            block.gpus = tuple(gpus)
            if self.costs.restore_seconds:
                # From here on the GPUs are its own, for whoever looks meanwhile.
                block.phase, block.stopped = NodePhase.PAUSING, True
                self._touch(node, job_id)
                await asyncio.sleep(self.costs.restore_seconds)
            block = self._block(node, job_id)
        block.phase, block.stopped = NodePhase.RUNNING, False
        self._touch(node, job_id)
        self._check(node)
        self._work_changed(job_id)
        self._answer(node)

    async def forget(self, node: str, job_id: JobId) -> None:
        self._reach(node)
        self._blocks[node].pop(job_id, None)
        self._touch(node, job_id)

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Living:
        self._reach(node)
        self._answer(node)
        return Living(int(self._lives_on(node, job_id)), 0.0)

    async def close(self) -> None:
        """Nothing to close."""

    # -- what goes on inside ----------------------------------------------------------------------------

    def _sample(self, node: str, now: float, made: dict[Hashable, NodeJob]) -> NodeSample | NodeError:
        """`made`: what was said of jobs on other nodes now. A gang's ranks do the same steps."""
        if node in self.unreachable:
            return NodeUnreachable(node, "no answer from its agent")
        blocks = self._blocks[node]
        if not blocks:
            idle = self._idle.get(node)
            if idle is not None:
                return idle
        jobs: dict[JobId, NodeJob] = {}
        on_gpu: dict[int, list[JobId]] = {}
        for job_id, block in blocks.items():
            here = self._lives_on(node, job_id)
            key = (job_id, here, block.phase, block.gpus)
            said = made.get(key)
            if said is None:
                ranks = _ranks(self.cluster.jobs[job_id]) if here else ()
                said = made[key] = NodeJob(job_id, block.phase, block.gpus, ranks, movable=self.movable)
            jobs[job_id] = said
            if here and block.phase is not NodePhase.YIELDED:
                for ordinal in block.gpus:
                    on_gpu.setdefault(ordinal, []).append(job_id)
        sample = NodeSample(node, now, _Gpus(node, self.cluster.nodes[node].gpus, on_gpu), jobs)
        if not jobs and self.cluster.partial:
            self._idle[node] = sample
        return sample

    def _memory_on(self, node: str) -> dict[int, list[JobId]]:
        """Jobs with memory, by GPU."""
        found: dict[int, list[JobId]] = {}
        for job_id, block in self._blocks[node].items():
            if block.phase is not NodePhase.YIELDED and self._lives_on(node, job_id):
                for ordinal in block.gpus:
                    found.setdefault(ordinal, []).append(job_id)
        return found

    def _lives_on(self, node: str, job_id: JobId) -> bool:
        """Whether it has processes here (it may have been prepared here once, and run elsewhere)."""
        job = self.cluster.jobs.get(job_id)
        return job is not None and job.state in _WITH_PROCESSES and node in job.nodes

    def _check(self, node: str) -> None:
        if len(self._blocks[node]) < 2:
            return
        for ordinal, jobs in self._memory_on(node).items():
            if len(jobs) > 1:
                now = self.cluster.clock()
                self.violations.append(f"t={now:g}: jobs {jobs} on {GpuId(node, ordinal)}")

    def _refuse_busy(self, node: str, job_id: JobId, gpus: Sequence[int]) -> None:
        if not self._blocks[node]:
            return
        held = self._memory_on(node)
        for ordinal in gpus:
            if others := [j for j in held.get(ordinal, ()) if j != job_id]:
                raise NodeError(node, "gpu_busy", f"job {others[0]} has memory on GPU {ordinal}")

    def _may_work(self, job: SimulatedJob) -> bool:
        blocks = [self._blocks[node].get(job.id) for node in job.nodes]
        return bool(job.nodes) and all(
            b is None or not (b.stopped or b.phase is NodePhase.YIELDED) for b in blocks
        )

    def _on_state(self, job: SimulatedJob) -> None:
        for node in job.nodes:
            self._touched[node] = None
            if job.state in (JobState.ENDED, JobState.COMPLETING):
                self._blocks[node].pop(job.id, None)
            elif job.state is JobState.RUNNING:
                if job.id not in self._blocks[node]:
                    # Slurm started it by itself, after a requeue: the prolog makes the block.
                    self._blocks[node][job.id] = _Block(by_node(job.binding)[node])
                self._check(node)

    def _touch(self, node: str, job_id: JobId) -> None:
        self._touched[node] = None
        self.cluster.touch(job_id)

    def _work_changed(self, job_id: JobId) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is not JobState.ENDED:
            self.cluster.work_changed(job)

    def _block(self, node: str, job_id: JobId) -> _Block:
        self._reach(node)
        block = self._blocks[node].get(job_id)
        if block is None:
            raise NodeError(node, "unknown_job", f"no control block for job {job_id}")
        return block

    def _reach(self, node: str) -> None:
        if node in self.unreachable:
            raise NodeUnreachable(node, "no answer from its agent")

    def _answer(self, node: str) -> None:
        """After a call took effect: its answer may get lost."""
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise NodeUnreachable(node, "the connection broke before the answer came")


def _ranks(job: SimulatedJob) -> tuple[RankSample, ...]:
    steps = int(job.done_seconds)
    rank = RankSample(
        0, RankState.RUNNING, steps, float(steps), 1.0, 1, job.state_bytes, job.largest_tensor_bytes
    )
    return (rank,)


class _Gpus(Sequence[GpuSample]):
    """The GPUs of a sample, described when somebody looks at them for the first time."""

    __slots__ = ("_cards", "_described", "_node", "_on_gpu")

    def __init__(self, node: str, cards: Sequence[SlurmGpu], on_gpu: Mapping[int, Sequence[JobId]]) -> None:
        self._node = node
        self._cards = cards
        self._on_gpu = on_gpu
        self._described: list[GpuSample] | None = None

    @overload
    def __getitem__(self, place: int) -> GpuSample: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[GpuSample]: ...

    def __getitem__(self, place: int | slice) -> GpuSample | Sequence[GpuSample]:
        return self._all()[place]

    def __iter__(self) -> Iterator[GpuSample]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._cards)

    def _all(self) -> list[GpuSample]:
        if self._described is None:
            self._described = [self._describe(card) for card in self._cards]
        return self._described

    def _describe(self, card: SlurmGpu) -> GpuSample:
        holders = self._on_gpu.get(card.index, ())
        return GpuSample(
            index=card.index,
            uuid=f"GPU-{self._node}-{card.index}",
            model=card.model,
            memory_bytes=_MEMORY_BYTES,
            memory_used_bytes=2**30 * len(holders),
            utilization_fraction=1.0 if holders else 0.0,
            healthy=True,
            processes=tuple([GpuProcess(1000 + job_id, job_id, 2001, 2**30) for job_id in holders]),
        )
