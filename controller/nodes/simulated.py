# SPDX-License-Identifier: GPL-2.0-or-later
"""GPU nodes that exist in memory, for the simulated cluster: the node port's second adapter.

They keep what real agents keep (who is on which GPU, who has yielded) and check on every change that no two
jobs have memory on one GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import overload

from controller.errors import NodeError, NodeUnreachable
from controller.frozen import quickly_made
from controller.layered import Version, versioned
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
from controller.slurm.port import JobState, SlurmGpu
from controller.slurm.simulated import SimulatedCluster, SimulatedJob

# (Python 3.11 takes seven times as long to read these of their class.)
_RUNNING, _SUSPENDED = JobState.RUNNING, JobState.SUSPENDED
_COMPLETING, _ENDED = JobState.COMPLETING, JobState.ENDED
_NODE_RUNNING, _NODE_PAUSING, _NODE_YIELDED = NodePhase.RUNNING, NodePhase.PAUSING, NodePhase.YIELDED
_MEMORY_BYTES = 80 * 2**30
_JOB_MEMORY_BYTES = 2**30
_WITH_PROCESSES = (_RUNNING, _SUSPENDED)


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
    phase: NodePhase = _NODE_RUNNING
    map_refused: bool = False
    """Its driver has refused to move it."""
    stopped: bool = False
    """At a step boundary, its state on the way to host memory."""
    off: bool = False
    """Its memory is off its GPUs, but its processes may still run."""


class _Blocks(dict[JobId, _Block]):
    """The control blocks of one node, and which of them name which GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._naming: dict[int, set[JobId]] = {}

    def add(self, job_id: JobId, block: _Block) -> None:
        """One more, or another one for the job."""
        self.pop(job_id, None)
        self[job_id] = block
        for ordinal in block.gpus:
            self._naming.setdefault(ordinal, set()).add(job_id)

    def pop(self, job_id: JobId, default: None = None) -> _Block | None:  # type: ignore[override]
        block = super().pop(job_id, None)
        if block is not None:
            for ordinal in block.gpus:
                self._naming[ordinal].discard(job_id)
        return block

    def move(self, job_id: JobId, gpus: tuple[int, ...]) -> None:
        """It names these GPUs from now on."""
        block = self[job_id]
        if block.gpus != gpus:
            self.pop(job_id)
            block.gpus = gpus
            self.add(job_id, block)

    def clear(self) -> None:
        super().clear()
        self._naming.clear()

    def naming(self, gpus: Sequence[int]) -> set[JobId]:
        """Jobs whose blocks name any of these GPUs."""
        naming = self._naming
        return {job_id for ordinal in gpus if ordinal in naming for job_id in naming[ordinal]}


@dataclass
class SimulatedNodes:
    """Implements `NodePort` on top of a `SimulatedCluster`."""

    cluster: SimulatedCluster
    costs: NodeCosts = field(default_factory=NodeCosts)
    movable: bool = True

    def __post_init__(self) -> None:
        self._blocks = {name: _Blocks() for name in self.cluster.nodes}
        self._touched: dict[str, dict[JobId, None]] = {name: {} for name in self.cluster.nodes}
        """Nodes that are not as they were told last, and the jobs that it is about."""
        self._told: dict[str, Version[JobId, NodeJob]] = {name: versioned() for name in self.cluster.nodes}
        """Jobs as they were told last, where only changes are told."""
        self.violations: list[str] = []
        """Instants at which two jobs had memory on one GPU. Must stay empty."""
        self.unreachable: set[str] = set()
        self.stubborn: set[JobId] = set()
        """Jobs that never reach a step boundary and that the driver cannot checkpoint."""
        self.idle: set[JobId] = set()
        """Jobs that have not touched their GPU yet (`empty` in the protocol)."""
        self.rooted: set[JobId] = set()
        """Jobs that the driver refuses to restore on other GPUs."""
        self.lose_answers = 0
        self.switches = 0
        self.cluster.may_work = self._may_work
        self.cluster.on_state = self._on_state

    # -- the port -------------------------------------------------------------------------------------

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The nodes are those of the cluster."""

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        now = self.cluster.clock()
        if not self.cluster.partial:
            return {name: self._sample(name, now) for name in self.cluster.nodes}
        touched, self._touched = self._touched, {}
        return {name: self._sample(name, now, jobs) for name, jobs in touched.items()}

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
        self._blocks[node].add(job_id, _Block(tuple(gpus)))
        self._touch(node, job_id)
        self._answer(node)

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        block = self._block(node, job_id)
        if block.off:
            return Pause(floor_step, True)
        block.phase = _NODE_PAUSING
        self._touch(node, job_id)
        if job_id in self.stubborn:
            await asyncio.sleep(wait_seconds)
            if sole:
                block.phase = _NODE_RUNNING
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
            block.phase, block.off = _NODE_PAUSING, True
            return Offload(0, 0.0, empty=True)
        if not block.off:
            block.stopped = True
            if self.costs.offload_seconds:
                self._work_changed(job_id)
                await asyncio.sleep(self.costs.offload_seconds)
            block = self._block(node, job_id)
            block.phase, block.stopped, block.off = _NODE_PAUSING, True, True
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

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        block = self._block(node, job_id)
        if not block.off:
            raise NodeError(node, "bad_request", f"job {job_id} still has its memory on its GPUs")
        block.phase = _NODE_YIELDED
        self._touch(node, job_id)
        self._answer(node)

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
        if self.cluster.jobs[job_id].state is _SUSPENDED:
            raise NodeError(node, "driver", f"job {job_id} is frozen: Slurm must resume it first")
        if block.off:
            self._refuse_busy(node, job_id, gpus)
            if job_id in self.rooted and tuple(gpus) != block.gpus:
                block.map_refused = True
                self._touch(node, job_id)
                raise NodeError(node, "unsupported", f"job {job_id} cannot move to GPUs {list(gpus)}")
            self._blocks[node].move(job_id, tuple(gpus))
            if self.costs.restore_seconds:
                # From here on the GPUs are its own, for whoever looks meanwhile.
                block.phase, block.stopped, block.off = _NODE_PAUSING, True, False
                self._touch(node, job_id)
                await asyncio.sleep(self.costs.restore_seconds)
            block = self._block(node, job_id)
        block.phase, block.stopped, block.off = _NODE_RUNNING, False, False
        self._touch(node, job_id)
        self._check(node, job_id)
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

    def _sample(
        self, node: str, now: float, changed: Mapping[JobId, None] | None = None
    ) -> NodeSample | NodeError:
        """What is on a node. `changed`: the jobs that are not as they were told last, if that is known."""
        if node in self.unreachable:
            if changed:
                self._touched[node] = dict(changed)
            return NodeUnreachable(node, "no answer from its agent")
        blocks = self._blocks[node]
        looked_at = blocks if changed is None else changed
        made = {job_id: self._say(node, job_id, blocks[job_id]) for job_id in looked_at if job_id in blocks}
        jobs: Mapping[JobId, NodeJob] = made
        if changed is not None:
            jobs = self._told[node] = self._told[node].with_changes(made, changed.keys() - made.keys())
        return _Sample(node, now, _Gpus(node, self.cluster.nodes[node].gpus, jobs), jobs, changed)

    def _say(self, node: str, job_id: JobId, block: _Block) -> NodeJob:
        ranks = _ranks(self.cluster.jobs[job_id]) if self._lives_on(node, job_id) else ()
        return NodeJob(job_id, block.phase, block.gpus, ranks, movable=self.movable and not block.map_refused)

    def _lives_on(self, node: str, job_id: JobId) -> bool:
        """Whether it has processes here (it may have been prepared here once, and run elsewhere)."""
        job = self.cluster.jobs.get(job_id)
        return job is not None and job.state in _WITH_PROCESSES and node in job.nodes

    def _others_on(self, node: str, job_id: JobId, gpus: Sequence[int]) -> Sequence[tuple[JobId, int]]:
        """Jobs other than this one with memory on any of these GPUs, and on which."""
        blocks = self._blocks[node]
        naming = blocks.naming(gpus)
        naming.discard(job_id)
        if not naming:
            return ()
        return [
            (other, ordinal)
            for other in sorted(naming)
            if blocks[other].phase is not _NODE_YIELDED and self._lives_on(node, other)
            for ordinal in gpus
            if ordinal in blocks[other].gpus
        ]

    def _check(self, node: str, job_id: JobId) -> None:
        """This job may have come to its GPUs."""
        block = self._blocks[node][job_id]
        if block.phase is _NODE_YIELDED or not self._lives_on(node, job_id):
            return
        for other, ordinal in self._others_on(node, job_id, block.gpus):
            now = self.cluster.clock()
            self.violations.append(f"t={now:g}: jobs {other} and {job_id} on {GpuId(node, ordinal)}")

    def _refuse_busy(self, node: str, job_id: JobId, gpus: Sequence[int]) -> None:
        for other, ordinal in self._others_on(node, job_id, gpus):
            raise NodeError(node, "gpu_busy", f"job {other} has memory on GPU {ordinal}")

    def _may_work(self, job: SimulatedJob) -> bool:
        for node in job.nodes:
            block = self._blocks[node].get(job.id)
            if block is not None and (block.stopped or block.phase is _NODE_YIELDED):
                return False
        return bool(job.nodes)

    def _on_state(self, job: SimulatedJob) -> None:
        for node in job.nodes:
            self._touched.setdefault(node, {})[job.id] = None
            if job.state in (_ENDED, _COMPLETING):
                self._blocks[node].pop(job.id, None)
            elif job.state is _RUNNING:
                if job.id not in self._blocks[node]:
                    # Slurm started it by itself, after a requeue: the prolog makes the block.
                    self._blocks[node].add(job.id, _Block(by_node(job.binding)[node]))
                self._check(node, job.id)

    def _touch(self, node: str, job_id: JobId) -> None:
        self._touched.setdefault(node, {})[job_id] = None
        self.cluster.touch(job_id)

    def _work_changed(self, job_id: JobId) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is not _ENDED:
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


def _has_memory(job: NodeJob) -> bool:
    """(Without ranks it is not here.)"""
    return bool(job.ranks) and job.phase is not _NODE_YIELDED


@quickly_made
@dataclass(frozen=True, slots=True)
class _Sample(NodeSample):
    """Knows what is asked of it without a look at every GPU."""

    def memory_bytes_of(self, job_id: JobId) -> int:
        job = self.jobs.get(job_id)
        return _JOB_MEMORY_BYTES if job is not None and _has_memory(job) else 0

    def living(self, job_ids: Set[JobId]) -> set[JobId]:
        return {job_id for job_id in job_ids if (job := self.jobs.get(job_id)) is not None and job.ranks}


class _Gpus(Sequence[GpuSample]):
    """The GPUs of a sample, described when somebody looks at them for the first time."""

    __slots__ = ("_cards", "_described", "_jobs", "_node")

    def __init__(self, node: str, cards: Sequence[SlurmGpu], jobs: Mapping[JobId, NodeJob]) -> None:
        self._node = node
        self._cards = cards
        self._jobs = jobs
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
            on_gpu: dict[int, list[JobId]] = {}
            for job_id, job in self._jobs.items():
                if _has_memory(job):
                    for ordinal in job.gpus:
                        on_gpu.setdefault(ordinal, []).append(job_id)
            self._described = [self._describe(card, on_gpu.get(card.index, ())) for card in self._cards]
        return self._described

    def _describe(self, card: SlurmGpu, holders: Sequence[JobId]) -> GpuSample:
        return GpuSample(
            index=card.index,
            uuid=f"GPU-{self._node}-{card.index}",
            model=card.model,
            memory_bytes=_MEMORY_BYTES,
            memory_used_bytes=_JOB_MEMORY_BYTES * len(holders),
            utilization_fraction=1.0 if holders else 0.0,
            healthy=True,
            processes=tuple(
                [GpuProcess(1000 + job_id, job_id, 2001, _JOB_MEMORY_BYTES) for job_id in holders]
            ),
        )
