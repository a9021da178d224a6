# SPDX-License-Identifier: GPL-2.0-or-later
"""A suspended job that its owner requeues waits as JobHeldAdmin, which is no administrator's hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cluster.port import ClusterJob, ClusterView, JobState
from controller.model import JobId
from controller.observe.holds import MOMENT_SECONDS
from tests.unit.loop.world import SLICE_SECONDS, World, run


class Held:
    """Lets the world's Slurm call jobs held by an administrator until they are held anew."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: set[JobId] = set()
        self.suspended: set[JobId] = set()
        """Held while they are suspended."""
        self.refused = 0
        cluster, observe, hold = world.cluster, world.cluster.observe, world.cluster.hold

        async def observed() -> ClusterView:
            view = await observe()
            return replace(view, jobs=tuple(self._shown(job) for job in view.jobs))

        async def held(job_id: JobId) -> None:
            await hold(job_id)
            self.jobs.discard(job_id)

        monkeypatch.setattr(cluster, "observe", observed)
        monkeypatch.setattr(cluster, "hold", held)

    def _shown(self, job: ClusterJob) -> ClusterJob:
        if job.id in self.jobs and job.state is JobState.PENDING:
            return replace(job, reason="JobHeldAdmin", held=True, user_hold=True)
        if job.id in self.suspended and job.state is JobState.SUSPENDED:
            return replace(job, reason="JobHeldAdmin", user_hold=True, obstacle="held by an operator")
        return job


async def one_suspended(world: World) -> JobId:
    jobs = [world.submit(work_seconds=3 * SLICE_SECONDS) for _ in range(2)]
    world.start()
    await asyncio.sleep(SLICE_SECONDS * 1.5)
    (suspended,) = [job for job in jobs if world.state(job) is JobState.SUSPENDED]
    return suspended


@pytest.mark.parametrize("killed", [False, True])
def test_it_gets_its_turn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        slurm = Held(world, monkeypatch)
        job = await one_suspended(world)
        if killed:
            await world.kill()
        slurm.jobs.add(job)
        await world.cluster.requeue(job)
        if killed:
            world.start()
        await world.until_ended([job], 200)
        assert slurm.jobs == set()
        await world.stop()
        world.check()

    run(scenario)


def test_an_administrators_hold_later_on_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        slurm = Held(world, monkeypatch)
        await one_suspended(world)
        waiting = world.submit(work_seconds=5)
        slurm.jobs.add(waiting)
        await asyncio.sleep(MOMENT_SECONDS + 10 * SLICE_SECONDS)
        assert world.state(waiting) is JobState.PENDING
        assert slurm.jobs == {waiting}
        await world.stop()

    run(scenario)


@pytest.mark.parametrize("requeued", [False, True])
def test_a_suspended_job_that_an_operator_holds_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeued: bool
) -> None:
    """To Slurm the hold is void: it resumes the job whenever it is told to."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        slurm = Held(world, monkeypatch)
        job = await one_suspended(world)
        slurm.suspended.add(job)
        world.cluster.touch(job)
        await asyncio.sleep(5 * SLICE_SECONDS)
        assert world.state(job) is JobState.SUSPENDED
        assert world.cycles[-1].snapshot.jobs[job].obstacle == "held by an operator"
        if requeued:
            slurm.jobs.add(job)
            await world.cluster.requeue(job)
            await asyncio.sleep(MOMENT_SECONDS + 3 * SLICE_SECONDS)
            assert slurm.jobs == {job} and world.state(job) is JobState.PENDING
        else:
            slurm.suspended.clear()  # scontrol release
            world.cluster.touch(job)
            await world.until_ended([job], 200)
        await world.stop()
        world.check()

    run(scenario)
