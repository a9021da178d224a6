# SPDX-License-Identifier: GPL-2.0-or-later
"""The live loop and executor, on a simulated cluster and virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.journal import JobFilter, JournalReader
from controller.model import JobId, Phase
from tests.unit.draws import some
from tests.unit.loop.world import SLICE_SECONDS, World, fifo, run


def test_a_job_runs_to_its_end_and_is_in_the_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        job = world.submit(work_seconds=30)
        world.start()
        await asyncio.sleep(40)
        await world.stop()
        assert world.state(job) is JobState.ENDED
        (row,) = JournalReader(world.journal_path).jobs(JobFilter())
        assert row.record.state == "COMPLETED"
        assert row.run_seconds == pytest.approx(30, abs=0.6)
        assert row.slices == 1
        world.check()

    run(scenario)


def test_weights_share_one_gpu_two_to_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        heavy, light = world.submit(weight=2.0), world.submit()
        world.start()
        await asyncio.sleep(24 * SLICE_SECONDS)
        await world.stop()
        ratio = world.worked_seconds(heavy) / world.worked_seconds(light)
        assert ratio == pytest.approx(2.0, rel=0.1)
        world.check()

    run(scenario)


def test_six_jobs_on_four_gpus_get_two_thirds_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=4)
        jobs = [world.submit() for _ in range(6)]
        world.start()
        begin = asyncio.get_running_loop().time()
        await asyncio.sleep(36 * SLICE_SECONDS)
        await world.stop()
        elapsed = asyncio.get_running_loop().time() - begin
        for job in jobs:
            assert world.worked_seconds(job) / elapsed == pytest.approx(4 / 6, rel=0.1)
        world.check()

    run(scenario)


def test_gang_over_two_nodes_stops_and_goes_on_as_a_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=4)
        jobs = [world.submit(8, nodes=2) for _ in range(2)]
        world.start()
        await asyncio.sleep(20 * SLICE_SECONDS)
        await world.stop()
        worked = [world.worked_seconds(j) for j in jobs]
        assert worked[0] == pytest.approx(worked[1], rel=0.15)
        assert sum(worked) > 18 * SLICE_SECONDS
        world.check()

    run(scenario)


NOT_HERE = (Step.CANCEL, Step.RESERVE, Step.SAVE)
"""No job is cancelled or migrates here: see test_unsuspendable.py, test_reserving.py, test_migrating.py."""


@pytest.mark.parametrize("fatal", [step for step in Step if step not in NOT_HERE])
@pytest.mark.parametrize("occurrence", some([1, 2], lambda nth: nth == 1))
def test_killed_before_any_step_every_job_goes_on(tmp_path: Path, fatal: Step, occurrence: int) -> None:
    """Kill the controller at each step of each operation; a new one must bring everything to its end."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=2, step_deadline_seconds=5.0, retry_after_seconds=25.0)
        jobs = [world.submit(work_seconds=60) for _ in range(3)]
        jobs.append(world.submit(2, work_seconds=40))
        jobs.append(world.submit(work_seconds=60, suspend="requeue"))
        jobs.append(world.submit(work_seconds=60, suspend="transparent"))
        jobs.append(world.submit(work_seconds=60))
        world.nodes.stubborn.add(jobs[0])
        world.nodes.idle.add(jobs[-1])
        controller = world.start()
        killed = asyncio.Event()
        count = 0
        recorder = controller.executor.context.recorder
        original = recorder.operation_step

        def step_or_die(operation: int, step: Step, now: float) -> None:
            nonlocal count
            original(operation, step, now)
            if step is fatal and not killed.is_set():
                count += 1
                if count == occurrence:
                    killed.set()
                    raise asyncio.CancelledError

        recorder.operation_step = step_or_die  # type: ignore[method-assign]
        await asyncio.wait_for(killed.wait(), timeout=600)
        await world.kill()
        await asyncio.sleep(3)
        world.nodes.stubborn.clear()
        world.start()
        await world.until_ended(jobs, 1500)
        await world.stop()
        world.check()

    run(scenario)


def test_a_controller_killed_and_restarted_keeps_the_accounts(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = [world.submit() for _ in range(2)]
        world.start()
        for _ in range(5):
            await asyncio.sleep(3.3 * SLICE_SECONDS)
            await world.kill()
            await asyncio.sleep(4)
            world.start()
        await asyncio.sleep(5)
        await world.stop()
        now = asyncio.get_running_loop().time()
        rows = {row.record.id: row for row in JournalReader(world.journal_path).jobs(JobFilter(), now=now)}
        for job in jobs:
            assert rows[job].run_seconds == pytest.approx(world.worked_seconds(job), rel=0.06)
        world.check()

    run(scenario)


def test_a_new_controller_does_not_forget_what_ended_jobs_did(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = [world.submit(work_seconds=25) for _ in range(2)]
        world.start()
        await world.until_ended(jobs, 200)
        await asyncio.sleep(2)
        await world.stop()
        before = JournalReader(world.journal_path).jobs(JobFilter())
        assert all(row.record.suspends >= 1 for row in before)
        world.start()
        await asyncio.sleep(3)
        await world.stop()
        assert JournalReader(world.journal_path).jobs(JobFilter()) == before

    run(scenario)


def test_a_job_that_cannot_be_stopped_keeps_its_gpu_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1, step_deadline_seconds=5.0, retry_after_seconds=40.0)
        stubborn, other = world.submit(), world.submit(work_seconds=5)
        world.nodes.stubborn.add(stubborn)
        world.start()
        await asyncio.sleep(12 * SLICE_SECONDS)
        assert world.running() == {int(stubborn)}
        assert world.state(other) is JobState.PENDING
        assert f"job {stubborn}" in caplog.text and "keeps them" in caplog.text
        world.nodes.stubborn.clear()
        await asyncio.sleep(80)
        assert world.state(other) is JobState.ENDED
        await world.stop()
        world.check()

    run(scenario)


def test_lost_answers_and_unreachable_parts_are_survived(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=2)
        jobs = [world.submit(work_seconds=100) for _ in range(8)]
        world.start()
        for round_number in range(12):
            await asyncio.sleep(7)
            world.cluster.lose_answers = round_number % 3
            world.nodes.lose_answers = (round_number + 1) % 3
            if round_number % 4 == 1:
                world.cluster.unavailable = True
                await asyncio.sleep(9)
                world.cluster.unavailable = False
            if round_number % 4 == 3:
                world.nodes.unreachable.add("n1")
                await asyncio.sleep(9)
                world.nodes.unreachable.clear()
        await world.until_ended(jobs, 800)
        await world.stop()
        world.check()

    run(scenario)


def test_resumed_behind_our_back_it_is_suspended_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.submit(), world.submit()
        world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        (victim,) = [j for j in world.cluster.jobs.values() if j.state is JobState.SUSPENDED]
        await world.cluster.resume(victim.id)
        assert victim.working_since is None, "its session must not go on by itself"
        await asyncio.sleep(3)
        assert victim.state is JobState.SUSPENDED
        await world.stop()
        world.check()

    run(scenario)


def test_drained_node_takes_no_new_jobs(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=1)
        world.cluster.set_node("n1", up=False, state="DRAINED", reason="fan")
        job = world.submit()
        world.start()
        await asyncio.sleep(5)
        assert {g.node for g in world.cluster.jobs[job].binding} == {"n2"}
        await world.stop()

    run(scenario)


def test_release_that_slurm_does_not_honour_is_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1, start_deadline_seconds=5.0)
        world.cluster.costs = type(world.cluster.costs)(0.005, 1e6, 0.1)
        job = world.submit()
        world.start()
        await asyncio.sleep(8)
        assert world.cluster.jobs[job].held and not world.cluster.jobs[job].wanted
        await world.stop()

    run(scenario)


def test_policy_change_to_fifo_lets_everybody_finish(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = [world.submit(work_seconds=25) for _ in range(3)]
        controller = world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        controller.use("fifo", fifo())
        await asyncio.sleep(200)
        await world.stop()
        assert [world.state(j) for j in jobs] == [JobState.ENDED] * 3
        world.check()

    run(scenario)


def test_an_unreadable_request_stays_held_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        bad = world.cluster.submit('gandiva:{"v":1,"gpus_per_node":-3,"nodes":1}', 10)
        good = world.submit(work_seconds=5)
        world.start()
        await asyncio.sleep(20)
        await world.stop()
        assert world.state(bad) is JobState.PENDING and world.state(good) is JobState.ENDED
        assert caplog.text.count("its request cannot be read") == 1
        assert "gpus_per_node" in caplog.text

    run(scenario)


def test_phases_seen_are_only_those_of_the_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.submit(), world.submit()
        world.start()
        await asyncio.sleep(5 * SLICE_SECONDS)
        await world.stop()
        seen = {job.phase for cycle in world.cycles for job in cycle.snapshot.jobs.values()}
        assert {Phase.RUNNING, Phase.SUSPENDED, Phase.RESUMING} <= seen
        assert Phase.STUCK not in seen and Phase.UNKNOWN not in seen
        assert world.cluster.jobs[JobId(1)].restart_count == 0

    run(scenario)


def test_time_on_gpus_counts_on_when_agents_answer_only_some_turns_after_a_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        job = world.submit(work_seconds=60)
        world.start()
        await asyncio.sleep(20)
        await world.kill()
        world.nodes.unreachable.add("n1")
        await asyncio.sleep(5)
        world.start()
        await asyncio.sleep(5)
        assert world.cycles[-1].snapshot.jobs[job].phase is Phase.UNKNOWN
        world.nodes.unreachable.discard("n1")
        await world.until_ended([job], 100)
        await asyncio.sleep(3)
        await world.stop()
        (row,) = JournalReader(world.journal_path).jobs(JobFilter())
        assert row.run_seconds == pytest.approx(60, abs=1.5)

    run(scenario)
