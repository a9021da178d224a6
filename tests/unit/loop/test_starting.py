# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs whose turn ends before they have begun to train: they import, or read their data."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import Offload, Pause
from controller.nodes.simulated import SimulatedNodes
from controller.simulation.virtual_time import run_virtual
from controller.slurm.port import ClusterView, JobState, SlurmJob
from controller.slurm.simulated import SimulatedCluster, SimulatedJob
from tests.unit.loop.world import SLICE_SECONDS, World


class NotYetAttached(SimulatedNodes):
    """Nodes as agents are: without a session a job cannot be paused, and only what is on no GPU can be
    stopped all the same when it has several."""

    busy: frozenset[JobId] = frozenset()
    """Without a session, but with memory on its GPUs."""

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        if job_id in self.idle or job_id in self.busy:
            raise NodeError(node, "not_cooperative", f"job {job_id}: no live session")
        return await super().pause(node, job_id, floor_step=floor_step, wait_seconds=wait_seconds, sole=sole)

    async def checkpoint(
        self, node: str, job_id: JobId, *, residual_limit_bytes: int, deadline_seconds: float
    ) -> Offload:
        if job_id in self.busy:
            raise NodeError(node, "unsupported", f"job {job_id}: only one GPU is supported")
        return await super().checkpoint(
            node, job_id, residual_limit_bytes=residual_limit_bytes, deadline_seconds=deadline_seconds
        )


def test_a_gang_that_has_not_begun_makes_room_at_the_end_of_its_slice(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        world.node_port = world.nodes = NotYetAttached(world.cluster)
        first, second = world.submit(gpus=2), world.submit(gpus=2, work_seconds=5)
        world.nodes.idle.add(first)
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.state(second) is JobState.ENDED
        world.nodes.idle.clear()
        await asyncio.sleep(SLICE_SECONDS)
        assert world.running() == {int(first)}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_gang_on_its_gpus_without_a_session_stays_and_its_user_reads_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        world.node_port = world.nodes = nodes = NotYetAttached(world.cluster)
        first, second = world.submit(gpus=2), world.submit(gpus=2, work_seconds=5)
        nodes.busy = frozenset({first})
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.running() == {int(first)}
        assert world.state(second) is JobState.PENDING
        assert f"job {first} (user alice): could not be taken off" in caplog.text
        assert "no live session; it keeps them" in caplog.text
        await world.stop()
        world.check()

    run_virtual(scenario())


class WithLimit(SimulatedCluster):
    """A user's QOS lets some of the jobs start no sooner than others have ended."""

    limited: frozenset[JobId] = frozenset()

    async def job(self, job_id: JobId) -> SlurmJob:
        seen = await super().job(job_id)
        if job_id in self.limited and seen.state is JobState.PENDING:
            return replace(seen, reason="QOSMaxJobsPerUserLimit")
        return seen

    def _start(self, job: SimulatedJob) -> None:
        if job.id not in self.limited:
            super()._start(job)


def test_a_job_at_a_limit_of_slurm_does_not_keep_gpus_from_others(tmp_path: Path) -> None:
    """It waits for jobs of its user to end, which may take days."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = WithLimit(world.cluster.nodes, world.cluster.costs)
        world.cluster = world.cluster_port = cluster
        world.node_port = world.nodes = SimulatedNodes(cluster)
        limited, other = world.submit(), world.submit(work_seconds=5)
        cluster.limited = frozenset({limited})
        world.start()
        await asyncio.sleep(20.0)
        assert world.state(other) is JobState.ENDED
        assert world.state(limited) is JobState.PENDING
        cluster.limited = frozenset()
        await asyncio.sleep(80.0)
        assert world.running() == {int(limited)}
        await world.stop()
        world.check()

    run_virtual(scenario())


class FailsToLaunch(SimulatedCluster):
    """The prolog of some jobs fails: slurmctld holds the job, and drains the node."""

    fails: frozenset[JobId] = frozenset()

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster.nodes, cluster.costs)
        self.held_by_slurm: set[JobId] = set()
        self.launches: list[JobId] = []

    def _seen(self, job: SlurmJob) -> SlurmJob:
        return (
            replace(job, user_hold=True, obstacle="its launch failed")
            if job.id in self.held_by_slurm
            else job
        )

    async def observe(self) -> ClusterView:
        view = await super().observe()
        return replace(view, jobs=tuple(map(self._seen, view.jobs)))

    async def job(self, job_id: JobId) -> SlurmJob:
        return self._seen(await super().job(job_id))

    async def hold(self, job_id: JobId) -> None:
        self.held_by_slurm.discard(job_id)  # as scontrol uhold does to the reason
        await super().hold(job_id)

    def _start(self, job: SimulatedJob) -> None:
        if job.id not in self.fails:
            super()._start(job)
        elif not job.held:
            self.launches.append(job.id)
            self.held_by_slurm.add(job.id)
            job.held = True


def test_a_job_that_slurm_holds_after_a_failed_launch_does_not_go_from_node_to_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = FailsToLaunch(world.cluster)
        world.cluster = world.cluster_port = cluster
        world.node_port = world.nodes = SimulatedNodes(cluster)
        failing, other = world.submit(), world.submit(work_seconds=5)
        cluster.fails = frozenset({failing})
        world.start()
        await asyncio.sleep(20.0)
        assert world.state(other) is JobState.ENDED
        await asyncio.sleep(1000.0)
        assert cluster.launches == [failing] and cluster.held_by_slurm == {failing}
        cluster.fails = frozenset()
        await cluster.hold(failing)  # its owner releases it, and the controller has its own hold again
        await asyncio.sleep(80.0)
        assert world.running() == {int(failing)}
        await world.stop()
        world.check()

    run_virtual(scenario())
