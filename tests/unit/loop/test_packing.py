# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that share GPUs by a plan: they are let beside each other, and others are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.journal.reader import JournalReader
from controller.policies.moves.pack import Pack
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import QueueSettings, TrialSettings
from controller.settings.policies import PolicySettings
from tests.unit.loop.world import SLICE_SECONDS, World, gandiva, run


@pytest.fixture(params=["gandiva", "tiresias-las"])
def policy(request: pytest.FixtureRequest) -> Policy:
    """Turns of ten seconds; or the job with less service goes before."""
    if request.param == "gandiva":
        return gandiva(Pack(TrialSettings()))
    queues = QueueSettings(queue_limits=[5.0, 10.0, 30.0], promote_knob_ratio=0.0)
    return PRESETS["tiresias-las"](
        PolicySettings(name="tiresias-las", tiresias=queues), (Pack(TrialSettings()),)
    )


def a_world(folder: Path, policy: Policy, **options: object) -> World:
    """Jobs that share a GPU go nearly as fast as alone, and tell in a few seconds how fast that is."""
    world = World(folder, gpus=1, policy=policy, preempt_exempt_ratio=1.0, **options)  # type: ignore[arg-type]
    world.cluster.rate = lambda _job, beside: 1.0 - 0.2 * len(beside)
    return world


async def until_packed(world: World, *jobs: int) -> None:
    for _ in range(300):
        if world.running() == set(jobs):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{world.running()} run, not {jobs}")


@pytest.mark.parametrize("deltas", [False, True])
def test_two_jobs_that_fit_together_run_together_to_their_ends(
    tmp_path: Path, policy: Policy, deltas: bool
) -> None:
    async def scenario() -> None:
        world = a_world(tmp_path, policy, deltas=deltas)
        first = world.submit(work_seconds=60, pack=True, model="m", steps_per_second=20.0)
        world.start()
        await asyncio.sleep(3)
        second = world.submit(work_seconds=15, pack=True, model="m", steps_per_second=20.0)
        await until_packed(world, first, second)
        (begun,) = [e for e in JournalReader(world.journal_path).events(first) if e.kind == "pack-tried"]
        assert begun.message.startswith(f"shares its GPUs with job {second}: their memory fits together")
        await asyncio.sleep(2)
        jobs = world.cycles[-1].snapshot.jobs
        assert jobs[first].placement.shares_with == {second}
        assert jobs[second].placement.shares_with == {first}
        assert jobs[first].placement.gpus == jobs[second].placement.gpus
        assert not world.cycles[-1].actions and not world.cycles[-1].plan.targets
        await world.until_ended([second], 60)
        await asyncio.sleep(2)
        assert world.cycles[-1].snapshot.jobs[first].placement.shares_with == frozenset()
        assert world.running() == {int(first)}
        await world.until_ended([first], 100)
        await world.stop()
        world.check()

    run(scenario)


def test_two_that_were_parted_take_turns_and_are_never_let_beside_each_other_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = a_world(tmp_path, gandiva(Pack(TrialSettings(trial_seconds=3.0))))
        world.cluster.rate = lambda _job, beside: 1.0 - 0.6 * len(beside)
        jobs = [world.submit(work_seconds=100, pack=True, model="m", steps_per_second=20.0) for _ in range(2)]
        world.start()
        await until_packed(world, *jobs)
        for _ in range(300):
            if len(world.running()) < 2:
                break
            await asyncio.sleep(0.1)
        assert len(world.running()) < 2, "a trial that shows no gain ends"
        context = world.controller.executor.context  # type: ignore[union-attr]
        switches = world.nodes.switches
        await asyncio.sleep(1.5 * SLICE_SECONDS)
        for _ in range(60):
            assert [context.beside(job) for job in jobs] == [frozenset(), frozenset()]
            await asyncio.sleep(SLICE_SECONDS / 10)
        assert world.nodes.switches >= switches + 4, "they take turns"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("away_seconds", [0.0, 3.0])
def test_a_new_controller_finds_them_together_and_leaves_them_so(
    tmp_path: Path, policy: Policy, away_seconds: float
) -> None:
    async def scenario() -> None:
        world = a_world(tmp_path, policy)
        first, second = (
            world.submit(work_seconds=200, pack=True, model="m", steps_per_second=20.0) for _ in range(2)
        )
        world.start()
        await until_packed(world, first, second)
        await world.kill()
        await asyncio.sleep(away_seconds)
        switches = world.nodes.switches
        world.start()
        await asyncio.sleep(3 * SLICE_SECONDS)
        assert world.running() == {int(first), int(second)}
        assert world.nodes.switches == switches
        assert world.cycles[-1].snapshot.jobs[second].placement.shares_with == {first}
        await world.stop()
        world.check()

    run(scenario)


def test_a_third_job_takes_its_turn_when_both_have_left(tmp_path: Path, policy: Policy) -> None:
    async def scenario() -> None:
        world = a_world(tmp_path, policy)
        jobs = [world.submit(work_seconds=60, pack=True, model="m", steps_per_second=20.0) for _ in range(2)]
        alone = world.submit(work_seconds=30)
        world.start()
        together = 0
        for _ in range(2000):
            running = world.running()
            together += running == set(jobs)
            assert alone not in running or running == {alone}
            if all(world.state(job) is JobState.ENDED for job in (*jobs, alone)):
                break
            await asyncio.sleep(0.1)
        assert together > 100
        await world.until_ended([*jobs, alone], 1)
        await world.stop()
        world.check()

    run(scenario)


def test_one_that_cannot_leave_keeps_both_on_their_gpu(tmp_path: Path, policy: Policy) -> None:
    """Its memory stays where it is: the other one may go on beside it, and no third job."""

    async def scenario() -> None:
        world = a_world(tmp_path, policy, step_deadline_seconds=5.0, retry_after_seconds=20.0)
        jobs = [world.submit(work_seconds=100, pack=True, model="m", steps_per_second=20.0) for _ in range(2)]
        world.start()
        await until_packed(world, *jobs)
        world.nodes.stubborn.add(jobs[1])
        alone = world.submit(work_seconds=10)
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert jobs[1] in world.running()
            assert alone not in world.running()
        world.nodes.stubborn.clear()
        await world.until_ended([*jobs, alone], 600)
        await world.stop()
        world.check()

    run(scenario)
