# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that starts from its own checkpoint goes on with more GPUs while no job needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.act.actions import Action, Migrate, Requeue, Resize, Suspend
from controller.act.diff import diff
from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts
from controller.journal.reader import JournalReader
from controller.model import (
    NOWHERE,
    Job,
    JobId,
    Phase,
    Placement,
    Snapshot,
    StateAt,
    SuspendMethod,
    Target,
)
from controller.policies.moves.grow import Grow
from controller.policies.protocol import Policy
from controller.policies.settings import GrowSettings, TrialSettings
from tests.unit.loop.world import World, fifo, gandiva, run
from tests.unit.policies.ideal import gpu_set, make_job, running

IDLE_SECONDS = 40.0
"""Long enough for a rate to be measured: the first of 25 mini-batches of a second."""


@pytest.fixture(params=["fifo", "gandiva"])
def policy(request: pytest.FixtureRequest) -> Policy:
    move = Grow(GrowSettings(idle_seconds=IDLE_SECONDS), TrialSettings(trial_seconds=30.0))
    return fifo(move) if request.param == "fifo" else gandiva(move)


def size(world: World, job: JobId) -> int:
    """GPUs that it runs on, as Slurm and its node say."""
    seen = world.cluster.jobs[job]
    shown = [cycle.snapshot.jobs[job] for cycle in world.cycles[-1:] if job in cycle.snapshot.jobs]
    runs = seen.state is JobState.RUNNING and [each.placement.gpus for each in shown] == [seen.binding]
    return len(seen.binding) if runs else 0


async def until(what: Callable[[], bool], seconds: float = 90.0) -> None:
    for _ in range(int(seconds / 0.5)):
        if what():
            return
        await asyncio.sleep(0.5)
    raise AssertionError("not in time")


@pytest.mark.parametrize("deltas", [False, True])
def test_a_job_grows_and_shrinks(tmp_path: Path, policy: Policy, deltas: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy, deltas=deltas)
        world.cluster.rate = lambda job, _beside: float(len(job.binding))
        job = world.submit(1, work_seconds=2000, suspend="requeue", max_gpus=4)
        world.start()
        await asyncio.sleep(5)
        assert size(world, job) == 1
        await until(lambda: size(world, job) == 4)
        await asyncio.sleep(60)
        assert size(world, job) == 4
        pair = world.submit(2, work_seconds=300)
        await until(lambda: size(world, pair) == 2, 10)
        await until(lambda: size(world, job) == 2, 10)
        single = world.submit(1, work_seconds=300)
        await until(lambda: size(world, single) == 1 and size(world, job) == 1, 10)
        decisions = JournalReader(world.journal_path).decisions(job)
        assert [d.reason for d in decisions if d.action == "requeue"] == [
            "changes its size: grows from 1 to 4 GPUs: GPUs of n1 are free that no job waits for",
            f"changes its size: shrinks from 4 to 2 GPUs: job {pair} waits for GPUs",
            f"changes its size: shrinks from 2 to 1 GPU: job {single} waits for GPUs",
        ]
        await world.until_ended([pair, single, job], 4000)
        await world.stop()
        world.check()

    run(scenario)


def test_a_growth_without_gain_is_undone(tmp_path: Path, policy: Policy) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = world.submit(1, work_seconds=2000, suspend="requeue", max_gpus=2)
        world.start()
        await asyncio.sleep(5)
        await until(lambda: size(world, job) == 2)
        await until(lambda: size(world, job) == 1, 100)
        await asyncio.sleep(200)
        assert size(world, job) == 1
        (_, undone) = [d for d in JournalReader(world.journal_path).decisions(job) if d.action == "requeue"]
        words = "shrinks from 2 to 1 GPU: it does 1.00 times what it did on 1 GPU"
        assert undone.reason == f"changes its size: {words}"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("suspend", ["cooperative", None])
def test_a_job_without_checkpoints_stays(tmp_path: Path, policy: Policy, suspend: str | None) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy)
        job = world.submit(1, suspend=suspend, max_gpus=4)
        world.start()
        await asyncio.sleep(5 * IDLE_SECONDS)
        assert size(world, job) == 1 and world.cluster.jobs[job].restart_count == 0
        await world.stop()

    run(scenario)


def test_a_job_with_a_store_grows_and_waits_from_what_it_has_saved(tmp_path: Path) -> None:
    """Whatever it is suspended by. Nothing of its work is lost, also where others take its GPUs."""

    async def scenario() -> None:
        world = World(
            tmp_path, policy=gandiva(Grow(GrowSettings(idle_seconds=IDLE_SECONDS), TrialSettings()))
        )
        job = world.submit(1, work_seconds=2000, suspend="cooperative", max_gpus=4)
        world.nodes.storing.add(job)
        world.start()
        await until(lambda: size(world, job) == 4)
        for _ in range(9):
            world.submit(1, work_seconds=100)
        await asyncio.sleep(60)
        assert world.cycles[-1].snapshot.jobs[job].gpus == 1
        reader = JournalReader(world.journal_path)
        grows, *leaves = [d.reason for d in reader.decisions(job) if d.action == "migrate"]
        assert grows.startswith("changes its size: grows from 1 to 4 GPUs") and leaves
        assert "requeue" not in {d.action for d in reader.decisions(job)}
        published = [e for e in reader.events(job) if e.kind == "checkpointed"]
        assert len(published) == 1 + len(leaves)
        await world.stop()
        world.check()

    run(scenario)


def test_a_new_controller_finds_the_growth_under_way(tmp_path: Path, policy: Policy) -> None:
    async def scenario() -> None:
        world = World(tmp_path, policy=policy, slurm_costs=SlurmCosts(0.005, 0.3, 10.0))
        job = world.submit(1, work_seconds=2000, suspend="requeue", max_gpus=4)
        world.start()
        await until(lambda: world.cluster.jobs[job].state is JobState.COMPLETING)
        await world.kill()
        world.cycles.clear()
        world.start()
        await until(lambda: world.cluster.jobs[job].state is JobState.PENDING, 20)
        await until(lambda: world.cycles[-1].snapshot.jobs[job].phase is Phase.QUEUED, 2)
        (seen, *_) = [j for cycle in world.cycles if (j := cycle.snapshot.jobs[job]).phase is Phase.QUEUED]
        assert (len(seen.promised), seen.promised_size, seen.request.size.wanted) == (4, 4, 1)
        await until(lambda: size(world, job) == 4)
        assert world.cycles[-1].snapshot.jobs[job].promised_size == 0
        await world.stop()
        world.check()

    run(scenario)


def test_stopped_after_it_grew_it_waits_as_it_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        grow = Grow(GrowSettings(idle_seconds=IDLE_SECONDS), TrialSettings())
        world = World(tmp_path, policy=gandiva(grow))
        job = world.submit(1, suspend="requeue", max_gpus=4)
        world.start()
        await until(lambda: size(world, job) == 4)
        for _ in range(9):
            world.submit(1, work_seconds=100)
        await asyncio.sleep(60)
        seen = world.cycles[-1].snapshot.jobs[job]
        assert seen.gpus == 1
        await world.stop()
        world.check()

    run(scenario)


def test_a_job_that_grew_is_never_suspended_in_place() -> None:
    """Also where the site's default has changed: it goes on as large as it is, or from a checkpoint."""
    grew = running(make_job(1, 1, may_resize=True), gpu_set("n1:0", "n1:1"))
    elsewhere = Placement(gpu_set("n1:0"), gpu_set("n1:0"))

    def made(job: Job, target: Target) -> list[Action]:
        snapshot = Snapshot(time=0.0, nodes={}, jobs={job.id: job})
        why = {job.id: "why"}
        cooperative = SuspendMethod.COOPERATIVE
        return diff(snapshot, {job.id: target}, why, [], suspend_in_slurm=True, default_method=cooperative)

    assert made(grew, Target(NOWHERE)) == [Requeue(grew.id, "why")]
    assert made(grew, Target(elsewhere, StateAt.STORE)) == [Requeue(grew.id, "changes its size: why")]
    assert made(replace(grew, may_resize=False, may_migrate=True), Target(elsewhere, StateAt.STORE)) == []
    stored = replace(grew, has_store=True)
    assert made(stored, Target(NOWHERE)) == [Migrate(grew.id, "why")]
    assert made(stored, Target(elsewhere, StateAt.STORE)) == [Migrate(grew.id, "changes its size: why")]
    as_asked = running(make_job(1, 2), gpu_set("n1:0", "n1:1"))
    assert made(as_asked, Target(NOWHERE)) == [Suspend(as_asked.id, "why")]
    # In place it keeps its allocation, whatever its size is.
    wide = replace(grew, may_resize=False, may_resize_here=True)
    smaller = Placement(gpu_set("n1:0"), grew.placement.allocation)
    assert made(wide, Target(NOWHERE)) == [Suspend(grew.id, "why")]
    assert made(wide, Target(smaller)) == [Resize(grew.id, "changes its size: why", smaller.gpus)]
    without_session = replace(wide, may_resize_here=False)
    assert made(without_session, Target(smaller)) == []
    assert made(without_session, Target(NOWHERE)) == [Suspend(grew.id, "why")], "no checkpoint to start from"
