# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulated cluster and its nodes, with what goes wrong on real ones: nodes are drained, daemons do not
answer, jobs cannot be stopped or moved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from typing_extensions import Unpack

from controller.cluster.port import JobState
from controller.cluster.simulated import SimulatedCluster
from controller.errors import ClusterUnavailable, NodeError, NodeUnreachable
from controller.model import GpuSet, JobId
from controller.nodes import protocol
from controller.nodes.port import Leave, NodeSample, Place
from controller.nodes.protocol import NodePhase
from controller.nodes.simulated import Block, SimulatedNodes


class TroubledCluster(SimulatedCluster):
    """What tests do to Slurm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unavailable = False
        """Answer nothing: slurmctld is down."""
        self.lose_answers = 0
        """So many calls take effect and then fail to say so."""

    def comment(self, job_id: JobId, text: str) -> None:
        """`scontrol update JobId=… Comment=…`."""
        self.jobs[job_id].comment = text
        self.touch(job_id)

    def set_node(self, name: str, **changes: object) -> None:
        """Drain, return, change a node."""
        self.nodes[name] = replace(self.nodes[name], **changes)  # type: ignore[arg-type]
        self._touched_nodes[name] = None

    def reconnect(self) -> None:
        """Another controller is connected: the next answer is complete."""
        self._answered = False

    async def _rpc(self) -> None:
        await super()._rpc()
        if self.unavailable:
            raise ClusterUnavailable("slurmctld does not answer")

    def _answer(self) -> None:
        """After a call took effect: its answer may get lost."""
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ClusterUnavailable("no answer within the deadline")

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        await super().bind(job_id, binding)
        self._answer()

    async def unbind(self, job_id: JobId) -> None:
        await super().unbind(job_id)
        self._answer()

    async def release(self, job_id: JobId) -> None:
        await super().release(job_id)
        self._answer()

    async def hold(self, job_id: JobId) -> None:
        await super().hold(job_id)
        self._answer()

    async def suspend(self, job_id: JobId) -> None:
        await super().suspend(job_id)
        self._answer()

    async def resume(self, job_id: JobId) -> None:
        await super().resume(job_id)
        self._answer()

    async def requeue(self, job_id: JobId) -> None:
        await super().requeue(job_id)
        self._answer()

    async def end(self, job_id: JobId, reason: str) -> None:
        await super().end(job_id, reason)
        self._answer()

    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        await super().reserve(job_id, gpus, seconds)
        self._answer()


class TroubledNodes(SimulatedNodes):
    """What goes wrong on nodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.movable = True
        """False: the driver moves no job."""
        self.unreachable: set[str] = set()
        self._silent: set[str] = set()
        """Nodes that were told as unreachable."""
        self.lose_answers = 0
        """So many calls take effect and then fail to say so."""
        self.stubborn: set[JobId] = set()
        """Jobs that never reach a step boundary and that the driver cannot checkpoint."""
        self.idle: set[JobId] = set()
        """Jobs that have not touched their GPU yet (`empty` in the protocol)."""
        self.full: set[JobId] = set()
        """Jobs whose store has no room."""
        self.reading_gpus: set[JobId] = set()
        """Jobs whose sessions cannot save while they are off their GPUs."""
        self.rooted: set[JobId] = set()
        """Jobs that the driver refuses to restore on other GPUs."""
        self._unmapped: list[Block] = []
        """Blocks whose driver has refused to move them."""

    def reconnect(self) -> None:
        """Another controller is connected: the next answer is of all nodes."""
        self._touched = dict.fromkeys(self.cluster.nodes)

    # -- nodes that do not answer -----------------------------------------------------------------------

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        self._touched.update(dict.fromkeys(sorted(self.unreachable ^ self._silent)))
        self._silent = set(self.unreachable)
        return await super().observe(deadline_seconds)

    def _sample(self, node: str, now: float) -> NodeSample | NodeError:
        if node in self.unreachable:
            return NodeUnreachable(node, "no answer from its agent")
        return super()._sample(node, now)

    def _block(self, node: str, job_id: JobId) -> Block:
        self._reach(node)
        return super()._block(node, job_id)

    def _reach(self, node: str) -> None:
        if node in self.unreachable:
            raise NodeUnreachable(node, "no answer from its agent")

    def _answer(self, node: str) -> None:
        """After a call took effect: its answer may get lost."""
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise NodeUnreachable(node, "the connection broke before the answer came")

    # -- jobs that cannot be stopped or moved -----------------------------------------------------------

    def _say(self, node: str, job_id: JobId, block: Block) -> protocol.NodeJob:
        said = super()._say(node, job_id, block)
        saves_yielded = said.saves_yielded and job_id not in self.reading_gpus
        return replace(said, movable=self.movable and not self._stays(block), saves_yielded=saves_yielded)

    def _stays(self, block: Block) -> bool:
        return any(block is refused for refused in self._unmapped)

    async def prepare(self, node: str, job_id: JobId, *, uid: int, **place: Unpack[Place]) -> None:
        self._reach(node)
        await super().prepare(node, job_id, uid=uid, **place)
        self._answer(node)

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> protocol.Pause:
        block = self._block(node, job_id)
        if job_id not in self.stubborn or block.off:
            paused = await super().pause(
                node, job_id, floor_step=floor_step, wait_seconds=wait_seconds, sole=sole
            )
            if not block.off:
                self._answer(node)
            return paused
        block.phase = NodePhase.PAUSING
        self._touched[node] = None
        await asyncio.sleep(wait_seconds)
        if sole:
            block.phase = NodePhase.RUNNING
            self._touched[node] = None
            raise NodeError(node, "deadline", f"job {job_id} reached no step boundary")
        return protocol.Pause(floor_step, False)

    async def offload(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> protocol.Offload:
        block = self._block(node, job_id)
        if job_id in self.idle:
            if not block.off:
                block.phase, block.off = NodePhase.PAUSING, True
            return protocol.Offload(0, 0.0, empty=True)
        offloaded = await super().offload(node, job_id, **leave)
        self._answer(node)
        return offloaded

    async def checkpoint(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> protocol.Offload:
        if job_id in self.stubborn:
            raise NodeError(node, "unsupported", f"job {job_id} cannot be checkpointed by the driver")
        return await super().checkpoint(node, job_id, **leave)

    async def save(self, node: str, job_id: JobId, *, deadline_seconds: float) -> protocol.Saved:
        saved = await super().save(node, job_id, deadline_seconds=deadline_seconds)
        self._answer(node)
        return saved

    def _cannot_save(self, node: str, job_id: JobId) -> NodeError | None:
        if job_id in self.full:
            return NodeError(node, "not_cooperative", f"rank 0 of job {job_id} cannot save: no room")
        if job_id in self.reading_gpus and self._block(node, job_id).phase is NodePhase.YIELDED:
            return NodeError(node, "unsupported", f"job {job_id} has no checkpoint store")
        return super()._cannot_save(node, job_id)

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        await super().stop(node, job_id, deadline_seconds=deadline_seconds)
        self._answer(node)

    async def resume(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        block, gpus = self._block(node, job_id), tuple(place["gpus"])
        frozen = job_id in self.cluster.jobs and self.cluster.jobs[job_id].state is JobState.SUSPENDED
        if job_id in self.rooted and block.off and not frozen and gpus != block.gpus:
            self._refuse_busy(node, job_id, place)
            self._unmapped.append(block)
            self._touched[node] = None
            raise NodeError(node, "unsupported", f"job {job_id} cannot move to GPUs {list(gpus)}")
        await super().resume(node, job_id, **place)
        self._answer(node)

    async def forget(self, node: str, job_id: JobId) -> None:
        self._reach(node)
        await super().forget(node, job_id)

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> protocol.Living:
        self._reach(node)
        self._answer(node)
        return await super().living(node, job_id, deadline_seconds=deadline_seconds)

    async def mapped(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Sequence[str]:
        self._reach(node)
        self._answer(node)
        return await super().mapped(node, job_id, deadline_seconds=deadline_seconds)

    async def warm(self, node: str, *, uid: int, files: Sequence[str], deadline_seconds: float) -> None:
        self._reach(node)
        self._answer(node)
