# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that its node knows nothing of any more is put back into the queue; one that lives is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.errors import ClusterRefused, NodeError
from controller.journal import JournalReader
from controller.model import JobId
from controller.nodes.protocol import Living
from controller.observe.vanished import ALIVE_SECONDS, MISSING_SECONDS
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import SLICE_SECONDS, World, run


class PowerCut(TroubledNodes):
    """Nodes that lost jobs: control blocks and, if so said, processes. slurmctld has not heard of it."""

    booted_at = 0.0
    """Of the power cut, if there was one: `lose` says when."""
    left: int = 0
    halted = False
    asked = 0
    deaf = False

    def lose(self, job_id: JobId, node: str = "n1", *, booted: bool = True) -> None:
        self._blocks[node].pop(job_id, None)
        self._touched[node] = None
        if booted:
            self.booted_at = asyncio.get_running_loop().time()

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Living:
        self.asked += 1
        if self.deaf:
            raise NodeError(node, "bad_request", "there is no verb living")
        return Living(self.left, self.booted_at, self.halted)


def a_world(folder: Path, nodes: int = 1, gpus: int = 1, mode: str = "slurm") -> tuple[World, PowerCut]:
    world = World(folder, nodes=nodes, gpus=gpus, mode=mode)
    port = PowerCut(world.cluster)
    world.node_port = world.nodes = port
    return world, port


async def until(world: World, job: JobId, state: JobState) -> None:
    for _ in range(600):
        if world.state(job) is state:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"job {job} is {world.state(job)}")


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.RUNNING])
def test_a_job_that_went_with_its_nodes_power_is_requeued_and_ends(tmp_path: Path, state: JobState) -> None:
    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=1)
        jobs = [world.submit(work_seconds=6 * SLICE_SECONDS) for _ in range(2)]
        world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        gone = next(j for j in jobs if world.state(j) is state)
        nodes.lose(gone)
        await asyncio.sleep(MISSING_SECONDS - 2)
        assert world.cluster.jobs[gone].restart_count == 0, "it is given a moment"
        await asyncio.sleep(5)
        assert world.cluster.jobs[gone].restart_count == 1
        await world.until_ended(jobs, 600)
        await world.stop()
        assert world.cluster.jobs[gone].restart_count == 1
        decisions = JournalReader(world.journal_path).decisions(gone)
        reasons = [decision.reason for decision in decisions if decision.action == "requeue"]
        assert reasons == ["nothing of it is left on n1, which has probably lost power"]
        world.check()

    run(scenario)


def test_a_job_that_lives_without_its_control_block_is_not_touched(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=2)
        nodes.left = 1
        job = world.submit(work_seconds=1000)
        world.start()
        await until(world, job, JobState.RUNNING)
        nodes.lose(job)
        await asyncio.sleep(MISSING_SECONDS + 2 * ALIVE_SECONDS + 5)
        assert nodes.asked == 3, "at first, and then now and then"
        assert world.cluster.jobs[job].restart_count == 0
        nodes.left = 0
        await asyncio.sleep(ALIVE_SECONDS + 5)
        assert world.cluster.jobs[job].restart_count == 1, "its processes have gone as well"
        await world.stop()

    run(scenario)


@pytest.mark.parametrize("mode", ["slurm", "node"])
def test_a_job_that_is_stopped_without_its_control_block_is_requeued(tmp_path: Path, mode: str) -> None:
    """It was off its GPUs, and nobody can bring it back. One that Slurm has suspended is its owner's."""

    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=1, mode=mode)
        jobs = [world.submit(work_seconds=6 * SLICE_SECONDS) for _ in range(2)]
        world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        off = next(j for j in jobs if j not in world.running())
        nodes.left, nodes.halted = 1, True
        nodes.lose(off, booted=False)
        await asyncio.sleep(MISSING_SECONDS + 5)
        assert world.cluster.jobs[off].restart_count == (mode == "node")
        if mode == "node":
            await world.until_ended(jobs, 600)
            decisions = JournalReader(world.journal_path).decisions(off)
            reasons = [decision.reason for decision in decisions if decision.action == "requeue"]
            assert reasons == ["it is off its GPUs, and its control block on n1 is gone"]
        await world.stop()

    run(scenario)


def test_a_node_that_does_not_say_what_lives_is_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=2)
        nodes.deaf = True
        job = world.submit(work_seconds=1000)
        world.start()
        await until(world, job, JobState.RUNNING)
        nodes.lose(job)
        await asyncio.sleep(5 * MISSING_SECONDS)
        assert world.cluster.jobs[job].restart_count == 0
        assert nodes.asked in (3, 4, 5)
        await world.stop()

    run(scenario)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_job_that_may_have_ended_by_itself_is_not_run_again(tmp_path: Path, node: str) -> None:
    """Its epilog may have been there, and slurmctld be back with an old state. (On the other nodes of a gang
    a job need not have processes at every moment.)"""

    async def scenario() -> None:
        world, nodes = a_world(tmp_path, nodes=2, gpus=1)
        job = world.submit(2, nodes=2, work_seconds=2000)
        world.start()
        await until(world, job, JobState.RUNNING)
        nodes.lose(job, node, booted=False)
        await asyncio.sleep(MISSING_SECONDS + 5)
        assert nodes.asked == 1
        assert world.cluster.jobs[job].restart_count == 0
        nodes.booted_at = asyncio.get_running_loop().time()
        await asyncio.sleep(ALIVE_SECONDS + 5)
        assert world.cluster.jobs[job].restart_count == 1
        await world.stop()

    run(scenario)


def test_what_was_found_of_one_run_of_a_job_counts_for_that_run_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=2)
        job = world.submit(work_seconds=1000)
        world.start()
        await until(world, job, JobState.RUNNING)
        nodes.lose(job)
        await asyncio.sleep(MISSING_SECONDS - 2)
        # Slurm was sooner, and no look fell between: its prolog has made no control block yet.
        world.cluster.jobs[job].start_time = asyncio.get_running_loop().time()
        await asyncio.sleep(MISSING_SECONDS - 3)
        assert nodes.asked == 0, "it is given a moment, as at every start"
        await asyncio.sleep(5)
        assert nodes.asked == 1
        assert world.cluster.jobs[job].restart_count == 0, "the node was booted before this start"
        await world.stop()

    run(scenario)


def test_a_job_that_slurm_will_not_requeue_is_asked_for_only_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world, nodes = a_world(tmp_path, gpus=1)
        asked = 0

        async def refuse(job_id: JobId) -> None:
            nonlocal asked
            asked += 1
            raise ClusterRefused(f"job {job_id} cannot be requeued: its user said --no-requeue")

        world.cluster.requeue = refuse  # type: ignore[method-assign]
        job = world.submit(work_seconds=1000)
        world.start()
        await until(world, job, JobState.RUNNING)
        nodes.lose(job)
        await asyncio.sleep(MISSING_SECONDS + 60)
        assert asked == 1
        assert "--no-requeue" in caplog.text
        await asyncio.sleep(world.settings.suspend.retry_after_seconds)
        assert asked == 2
        await world.stop()

    run(scenario)
