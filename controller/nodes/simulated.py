# SPDX-License-Identifier: GPL-2.0-or-later
"""GPU nodes that exist in memory, for the simulated cluster: the node port's second adapter.

They keep what real agents keep (which jobs are on which GPUs, which have yielded) and check on every change
that no two jobs have memory on one GPU but those that may.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from typing_extensions import Unpack

from controller.cluster.port import ON_NODES, OVER, JobState
from controller.cluster.simulated import SimulatedCluster
from controller.cluster.simulated_job import SimulatedJob
from controller.errors import NodeError
from controller.model import GpuId, JobId, by_node, value
from controller.nodes import protocol
from controller.nodes.port import Leave, NodeSample, Place
from controller.nodes.progress import Progress
from controller.nodes.protocol import NodePhase

PROGRAM = "/usr/bin/python3"
"""What all jobs run."""
_MEMORY_BYTES = 80 * 2**30
_JOB_MEMORY_BYTES = 2**30


@value
class NodeCosts:
    """How long things take on a node, in seconds. Zero: ideal."""

    step_seconds: float = 0.0
    """Until the next mini-batch ends."""
    offload_seconds: float = 0.0
    restore_seconds: float = 0.0
    save_seconds: float = 0.0


@dataclass(slots=True)
class Block:
    """A control block: what a node keeps of a job."""

    gpus: tuple[int, ...]
    phase: NodePhase = NodePhase.RUNNING
    beside: frozenset[JobId] = frozenset()
    """Jobs that may have memory on the same GPUs."""
    stopped: bool = False
    """At a step boundary, its state on the way to host memory."""
    off: bool = False
    """Its memory is off its GPUs, but its processes may still run."""

    @property
    def works(self) -> bool:
        return not self.stopped and self.phase is not NodePhase.YIELDED


@dataclass
class SimulatedNodes:
    """Implements `NodePort` on top of a `SimulatedCluster`."""

    cluster: SimulatedCluster
    costs: NodeCosts = field(default_factory=NodeCosts)
    deltas: bool = False
    """Answer with nodes on which something changed since the answer before, where there was one."""
    progress: bool = True
    """And with those of jobs that have done enough at their present speed to make a rate."""
    tells_steps: bool = True
    """False: no job tells how far it is, as one that does not use the module `gandiva`."""

    def __post_init__(self) -> None:
        self._blocks: dict[str, dict[JobId, Block]] = {name: {} for name in self.cluster.nodes}
        self._touched: dict[str, None] = dict.fromkeys(self.cluster.nodes)
        """Nodes that are not as they were told last."""
        self._progress = Progress()
        self._answers: dict[str, NodeSample | NodeError] = {}
        """The last answer of every node. An answer in full repeats it where nothing changed, so that both
        kinds of answers show progress at the same times."""
        self.violations: list[str] = []
        """Instants at which two jobs had memory on one GPU that may not. Must stay empty."""
        self.storing: set[JobId] = set()
        """Jobs whose sessions have a checkpoint store."""
        self.resizable: set[JobId] = set()
        """Jobs whose sessions go on with any number of GPUs."""
        self.switches = 0
        self.cluster.may_work = self._may_work
        self.cluster.company = self._company
        self.cluster.on_state = self._on_state

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The nodes are those of the cluster."""

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        now = self.cluster.clock()
        for job_id in self._progress.due(now):
            self._touched.update(dict.fromkeys(self.cluster.jobs[job_id].nodes))
        touched, self._touched = self._touched, {}
        answer = {name: self._sample(name, now) for name in touched}
        self._answers.update(answer)
        return answer if self.deltas else dict(self._answers)

    async def prepare(self, node: str, job_id: JobId, *, uid: int, **place: Unpack[Place]) -> None:
        self._refuse_busy(node, job_id, place)
        self._blocks[node][job_id] = Block(tuple(place["gpus"]), beside=place.get("beside", frozenset()))
        self._touched[node] = None

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> protocol.Pause:
        block = self._block(node, job_id)
        if not block.off:
            block.phase = NodePhase.PAUSING
            self._touched[node] = None
            await _takes(self.costs.step_seconds)
        return protocol.Pause(floor_step, True)

    async def offload(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> protocol.Offload:
        block = self._block(node, job_id)
        if not block.off:
            block.stopped = True
            if self.costs.offload_seconds:
                self._work_changed(job_id)
                await asyncio.sleep(self.costs.offload_seconds)
            block = self._block(node, job_id)
            block.phase, block.stopped, block.off = NodePhase.PAUSING, True, True
            self._touched[node] = None
            self.switches += 1
            self._work_changed(job_id)
        return protocol.Offload(0, self.costs.offload_seconds)

    async def checkpoint(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> protocol.Offload:
        return await self.offload(node, job_id, **leave)

    async def save(self, node: str, job_id: JobId, *, deadline_seconds: float) -> protocol.Saved:
        block, job = self._block(node, job_id), self.cluster.jobs[job_id]
        yielded = block.phase is NodePhase.YIELDED
        if not yielded and (block.off or block.phase is not NodePhase.PAUSING):
            raise NodeError(node, "bad_request", f"job {job_id} is {block.phase.value}: pause it first")
        if job.state is JobState.SUSPENDED:
            raise NodeError(node, "halted", f"job {job_id} is frozen: Slurm must resume it first")
        if (failure := self._cannot_save(node, job_id)) is not None:
            block.phase = block.phase if yielded else NodePhase.RUNNING
            self._touched[node] = None
            raise failure
        block.stopped = True
        self._work_changed(job_id)
        await _takes(self.costs.save_seconds)
        steps = int(job.done_at(self.cluster.clock()) * job.steps_per_second)
        return protocol.Saved(steps, 1, self.costs.save_seconds)

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        block = self._block(node, job_id)
        if not block.off:
            raise NodeError(node, "bad_request", f"job {job_id} still has its memory on its GPUs")
        block.phase = NodePhase.YIELDED
        self._touched[node] = None

    def _cannot_save(self, node: str, job_id: JobId) -> NodeError | None:
        """Why a job that is where it can save does not; None: it does."""
        if job_id in self.storing:
            return None
        return NodeError(node, "unsupported", f"job {job_id} has no checkpoint store")

    async def open(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        if self._block(node, job_id).off:
            self._refuse_busy(node, job_id, place)

    async def resume(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        gpus, block = place["gpus"], self._block(node, job_id)
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is JobState.SUSPENDED:
            raise NodeError(node, "driver", f"job {job_id} is frozen: Slurm must resume it first")
        if block.off:
            self._refuse_busy(node, job_id, place)
            if len(gpus) != len(block.gpus) and job_id not in self.resizable:
                raise NodeError(node, "unsupported", f"job {job_id} has {len(block.gpus)} GPUs")
            block.gpus, block.beside = tuple(gpus), place.get("beside", frozenset())
            if self.costs.restore_seconds:
                # From here on the GPUs are its own, for all who look meanwhile.
                block.phase, block.stopped, block.off = NodePhase.PAUSING, True, False
                self._touched[node] = None
                await asyncio.sleep(self.costs.restore_seconds)
            block = self._block(node, job_id)
        block.phase, block.stopped, block.off = NodePhase.RUNNING, False, False
        self._touched[node] = None
        self._check(node, job_id)
        self._work_changed(job_id)

    async def forget(self, node: str, job_id: JobId) -> None:
        self._blocks[node].pop(job_id, None)
        self._touched[node] = None

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> protocol.Living:
        return protocol.Living(int(self._lives_on(node, job_id)), 0.0)

    async def mapped(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Sequence[str]:
        return [PROGRAM] if self._lives_on(node, job_id) else []

    async def warm(self, node: str, *, uid: int, files: Sequence[str], deadline_seconds: float) -> None:
        """All files are in the page cache."""

    async def close(self) -> None:
        """Nothing to close."""

    def _sample(self, node: str, now: float) -> NodeSample | NodeError:
        jobs: dict[JobId, protocol.NodeJob] = {}
        on_gpu: dict[int, tuple[JobId, ...]] = {}
        for job_id, block in self._blocks[node].items():
            job = jobs[job_id] = self._say(node, job_id, block)
            if job.ranks and job.phase is not NodePhase.YIELDED:
                for ordinal in job.gpus:
                    on_gpu[ordinal] = (*on_gpu.get(ordinal, ()), job_id)
        cards = self.cluster.nodes[node].gpus
        gpus = [_gpu_sample(node, card.index, card.model, on_gpu.get(card.index, ())) for card in cards]
        return NodeSample(node, now, gpus, jobs)

    def _say(self, node: str, job_id: JobId, block: Block) -> protocol.NodeJob:
        ranks: tuple[protocol.RankSample, ...] = ()
        if self._lives_on(node, job_id):
            job, now = self.cluster.jobs[job_id], self.cluster.clock()
            ranks = (_rank(job, node, now, tells_steps=self.tells_steps),)
            if self.progress:
                self._progress.follow(job, now)
        return protocol.NodeJob(
            job_id,
            block.phase,
            block.gpus,
            ranks,
            movable=True,
            resizable=job_id in self.resizable,
            has_store=bool(ranks) and job_id in self.storing,
            saves_yielded=bool(ranks) and job_id in self.storing and block.phase is NodePhase.YIELDED,
        )

    def gpus_of(self, job: SimulatedJob) -> int:
        """How many its control blocks name: of all that a floating job is bound to, those that it uses."""
        return sum(len(self._blocks[n][job.id].gpus) for n in job.nodes if job.id in self._blocks[n])

    def _lives_on(self, node: str, job_id: JobId) -> bool:
        """Whether it has processes here (it may have been prepared here once, and run elsewhere)."""
        job = self.cluster.jobs.get(job_id)
        return job is not None and job.state in ON_NODES and node in job.nodes

    def _others(self, node: str, job_id: JobId, gpus: Sequence[int]) -> list[tuple[JobId, Block]]:
        """Living jobs but this one whose blocks name any of these GPUs, in the order of their ids."""
        blocks = self._blocks[node]
        if blocks.keys() <= {job_id}:
            return []
        return [
            (other, block)
            for other, block in sorted(blocks.items())
            if other != job_id and not set(gpus).isdisjoint(block.gpus) and self._lives_on(node, other)
        ]

    def _others_on(self, node: str, job_id: JobId, gpus: Sequence[int]) -> list[tuple[JobId, int]]:
        """Jobs other than this one with memory on any of these GPUs, and on which."""
        return [
            (other, ordinal)
            for other, block in self._others(node, job_id, gpus)
            if block.phase is not NodePhase.YIELDED
            for ordinal in gpus
            if ordinal in block.gpus
        ]

    def _check(self, node: str, job_id: JobId) -> None:
        """This job may have come to its GPUs."""
        blocks = self._blocks[node]
        block = blocks[job_id]
        if block.phase is NodePhase.YIELDED or not self._lives_on(node, job_id):
            return
        for other, ordinal in self._others_on(node, job_id, block.gpus):
            if other not in block.beside and job_id not in blocks[other].beside:
                now = self.cluster.clock()
                self.violations.append(f"t={now:g}: jobs {other} and {job_id} on {GpuId(node, ordinal)}")

    def _refuse_busy(self, node: str, job_id: JobId, place: Place) -> None:
        for other, ordinal in self._others_on(node, job_id, place["gpus"]):
            if other not in place.get("beside", ()):
                raise NodeError(node, "gpu_busy", f"job {other} has memory on GPU {ordinal}")

    def _may_work(self, job: SimulatedJob) -> bool:
        for node in job.nodes:
            block = self._blocks[node].get(job.id)
            if block is not None and not block.works:
                return False
        return bool(job.nodes)

    def _company(self, job: SimulatedJob) -> list[SimulatedJob]:
        """Other jobs whose blocks name GPUs of this one."""
        found: dict[JobId, SimulatedJob] = {}
        for node in job.nodes:
            block = self._blocks[node].get(job.id)
            for other, its in self._others(node, job.id, block.gpus) if block is not None else ():
                if its.works:
                    found[other] = self.cluster.jobs[other]
        return list(found.values())

    def _on_state(self, job: SimulatedJob) -> None:
        for node in job.nodes:
            self._touched[node] = None
            if job.state in OVER:
                self._blocks[node].pop(job.id, None)
                self._progress.forget(job.id)
            elif job.state is JobState.RUNNING:
                if job.id not in self._blocks[node]:
                    # Slurm started it by itself, after a requeue: the prolog makes the block.
                    self._blocks[node][job.id] = Block(by_node(job.binding)[node])
                self._check(node, job.id)

    def _work_changed(self, job_id: JobId) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is not JobState.ENDED:
            self.cluster.work_changed(job)

    def _block(self, node: str, job_id: JobId) -> Block:
        block = self._blocks[node].get(job_id)
        if block is None:
            raise NodeError(node, "unknown_job", f"no control block for job {job_id}")
        return block


async def _takes(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


def _rank(job: SimulatedJob, node: str, now: float, *, tells_steps: bool) -> protocol.RankSample:
    """That of the job on this node: one on each. A mini-batch counts as one sample."""
    steps = int(job.done_at(now) * job.steps_per_second) if tells_steps else 0
    speed = job.rate * job.steps_per_second
    return protocol.RankSample(
        rank=job.nodes.index(node),
        state=protocol.RankState.RUNNING,
        steps_done=steps,
        samples_done=steps / len(job.nodes),
        step_seconds=1 / speed if speed > 0 else 0.0,
        world_size=len(job.nodes),
        state_bytes=job.state_bytes,
        largest_tensor_bytes=job.largest_tensor_bytes,
    )


@lru_cache(maxsize=1 << 16)
def _gpu_sample(node: str, ordinal: int, model: str, holders: tuple[JobId, ...]) -> protocol.GpuSample:
    return protocol.GpuSample(
        index=ordinal,
        uuid=f"GPU-{node}-{ordinal}",
        model=model,
        memory_bytes=_MEMORY_BYTES,
        memory_used_bytes=_JOB_MEMORY_BYTES * len(holders),
        utilization_fraction=1.0 if holders else 0.0,
        healthy=True,
        processes=tuple(
            protocol.GpuProcess(1000 + job_id, job_id, 2001, _JOB_MEMORY_BYTES) for job_id in holders
        ),
    )
