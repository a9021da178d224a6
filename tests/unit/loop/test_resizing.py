# SPDX-License-Identifier: GPL-2.0-or-later
"""A job whose sessions go on with any number of GPUs grows and shrinks in place, without a requeue."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.errors import NodeError
from controller.journal.reader import JournalReader
from controller.model import GpuSet, JobId, Phase
from controller.policies.moves.grow import Grow
from controller.policies.protocol import Policy
from controller.policies.settings import GrowSettings, TrialSettings
from tests.unit.draws import some
from tests.unit.loop.test_growing import until
from tests.unit.loop.world import World, fifo, gandiva, run

IDLE_SECONDS = 40.0
STEPS = [Step.CLAIM, Step.PAUSE, Step.OFFLOAD, Step.STOP, Step.NODE_RESUME]
"""Of a resize, in order."""


@pytest.fixture(params=["fifo", "gandiva"])
def policy(request: pytest.FixtureRequest) -> Policy:
    move = Grow(GrowSettings(idle_seconds=IDLE_SECONDS, in_place=True), TrialSettings(trial_seconds=30.0))
    return fifo(move) if request.param == "fifo" else gandiva(move)


def adaptive(world: World, work_seconds: float = 1000.0) -> JobId:
    """A job of 1 GPU that can use 4, as fast as it has GPUs."""
    world.cluster.rate = lambda job, _beside: float(world.nodes.gpus_of(job))
    job = world.submit(1, work_seconds=work_seconds, suspend="cooperative", max_gpus=4)
    world.nodes.resizable.add(job)
    return job


def on(world: World, job: JobId) -> GpuSet:
    """GPUs that it runs on, as the controller has it; none while it changes."""
    seen = world.cycles[-1].snapshot.jobs.get(job) if world.cycles else None
    return seen.placement.gpus if seen is not None and seen.phase is Phase.RUNNING else frozenset()


def size(world: World, job: JobId) -> int:
    return len(on(world, job))


def reasons(world: World, job: JobId) -> list[str]:
    decisions = JournalReader(world.journal_path).decisions(job)
    return [decision.reason for decision in decisions if decision.action == "resize"]


@pytest.mark.parametrize("deltas", [False, True])
def test_one_two_four_two_one(tmp_path: Path, policy: Policy, deltas: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy, deltas=deltas)
        job = adaptive(world, 1500.0)
        one, two = world.submit(1, work_seconds=30), world.submit(2, work_seconds=400)
        world.start()
        await until(lambda: size(world, job) == 1 and size(world, one) == 1 and size(world, two) == 2, 10)
        assert len(world.cluster.jobs[job].binding) == 4, "it floats"
        await until(lambda: size(world, job) == 2)
        await until(lambda: size(world, job) == 4, 250)
        await asyncio.sleep(60)
        assert size(world, job) == 4
        two = world.submit(2, work_seconds=300)
        await until(lambda: size(world, two) == 2 and size(world, job) == 2, 10)
        one = world.submit(1, work_seconds=300)
        await until(lambda: size(world, one) == 1 and size(world, job) == 1, 10)
        assert reasons(world, job) == [
            "changes its size: grows from 1 to 2 GPUs: GPUs of n1 are free that no job waits for",
            "changes its size: grows from 2 to 4 GPUs: GPUs of n1 are free that no job waits for",
            f"changes its size: shrinks from 4 to 2 GPUs: job {two} waits for GPUs",
            f"changes its size: shrinks from 2 to 1 GPU: job {one} waits for GPUs",
        ]
        assert world.cluster.jobs[job].restart_count == 0
        await world.until_ended([one, two, job], 5000)
        await world.stop()
        world.check()
        with closing(sqlite3.connect(world.journal_path)) as journal:
            outcomes = set(journal.execute("SELECT outcome FROM operations"))
        assert outcomes == {("done",)}, "jobs that come wait for the GPUs that are given up"

    run(scenario)


@pytest.mark.parametrize(
    ("step", "grows"),
    some(itertools.product(STEPS, (True, False)), lambda case: case[1] is (STEPS.index(case[0]) % 2 == 0)),
)
def test_a_new_controller_goes_on_from_every_step(
    tmp_path: Path, policy: Policy, step: Step, grows: bool
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = adaptive(world)
        controller = world.start()
        if not grows:
            await until(lambda: size(world, job) == 4)
        taken = asyncio.Event()
        original = controller.executor.context.recorder.operation_step

        def cut(operation: int, at: Step, now: float) -> None:
            original(operation, at, now)
            resizing = reasons(world, job)
            if at is step and resizing and ("grows" in resizing[-1]) is grows:
                taken.set()
                raise asyncio.CancelledError

        controller.executor.context.recorder.operation_step = cut  # type: ignore[method-assign, assignment]
        pair = None if grows else world.submit(2, work_seconds=300)
        await asyncio.wait_for(taken.wait(), 200)
        await world.kill()
        world.cycles.clear()
        world.start()
        if pair is None:
            await until(lambda: size(world, job) == 4, 600)
        else:
            await until(lambda: size(world, pair) == 2, 60)
            await until(lambda: size(world, job) in (1, 2), 60)
        assert world.cluster.jobs[job].restart_count == 0
        await world.until_ended([job], 5000)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("failure", ["refused", "lost", "late"])
def test_where_the_new_gpus_cannot_be_had_it_goes_on_as_it_was(
    tmp_path: Path, policy: Policy, failure: str
) -> None:
    """Where the node's answer is lost, or comes too late to go back, it works on the new GPUs, and is found
    there."""

    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = adaptive(world)
        original, asked = world.nodes.resume, 0

        async def resume(node: str, job_id: JobId, **place: object) -> None:
            nonlocal asked
            asked += bool(asked) or len(place["gpus"]) == 4  # type: ignore[arg-type]
            if asked == 1 and failure == "refused":
                raise NodeError(node, "gpu_busy", "another process is there")
            if asked == 2 and failure == "late":
                raise NodeError(node, "unsupported", f"job {job_id} cannot move: it is running there")
            if asked == 1 and failure == "lost":
                world.nodes.lose_answers = 1
            await original(node, job_id, **place)  # type: ignore[arg-type]
            if asked == 1 and failure == "late":
                raise NodeError(node, "deadline", f"rank 0 of job {job_id} is still restoring")

        world.nodes.resume = resume  # type: ignore[method-assign]
        world.start()
        await until(lambda: asked >= 1)
        await asyncio.sleep(5)
        assert size(world, job) == (1 if failure == "refused" else 4)
        assert world.state(job) is JobState.RUNNING and int(job) in world.running()
        events = JournalReader(world.journal_path).events(job)
        (message,) = [event.message for event in events if event.kind == "resize-failed"]
        (row,) = JournalReader(world.journal_path).jobs()
        assert row.record.moves == (0 if failure == "refused" else 1)
        assert message.startswith("change from n1:0 to n1:0,n1:1,n1:2,n1:3 failed: "), message
        await until(lambda: size(world, job) == 4, 600)
        await world.until_ended([job], 5000)
        await world.stop()
        world.check()

    run(scenario)


def test_a_job_that_reaches_no_boundary_keeps_its_size(tmp_path: Path, policy: Policy) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = adaptive(world)
        world.nodes.stubborn.add(job)
        world.start()
        await until(lambda: bool(reasons(world, job)))
        await asyncio.sleep(120)
        assert size(world, job) == 1 and int(job) in world.running()
        assert not world.cycles[-1].snapshot.jobs[job].may_stop, "not asked again for a while"
        await world.stop()
        world.check()

    run(scenario)


def test_sessions_that_cannot_keep_their_job_as_large_as_it_was_asked_for(
    tmp_path: Path, policy: Policy
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = adaptive(world)
        world.nodes.resizable.clear()
        world.start()
        await asyncio.sleep(5 * IDLE_SECONDS)
        assert size(world, job) == 1 and not reasons(world, job)
        await world.stop()

    run(scenario)


def test_suspended_after_it_grew_it_comes_back_as_it_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        grow = Grow(GrowSettings(idle_seconds=IDLE_SECONDS, in_place=True), TrialSettings())
        world = World(tmp_path, policy=gandiva(grow))
        job = adaptive(world)
        world.start()
        await until(lambda: size(world, job) == 4)
        others = [world.submit(1, work_seconds=100) for _ in range(9)]
        await asyncio.sleep(60)
        assert world.cycles[-1].snapshot.jobs[job].gpus == 1
        assert world.cluster.jobs[job].restart_count == 0
        await world.until_ended(others, 2000)
        await world.stop()
        world.check()

    run(scenario)
