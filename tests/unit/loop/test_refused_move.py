# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that a driver refuses to move: they take their turns on the GPU where they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.cluster.port import JobState
from controller.journal import JournalReader
from controller.model import JobId
from tests.unit.loop.world import SLICE_SECONDS, World, run


def refusals(world: World, job_id: JobId) -> int:
    events = JournalReader(world.journal_path).events(job_id)
    return sum("cannot move" in event.message for event in events)


def test_a_job_whose_move_is_refused_is_not_asked_to_move_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=4)
        jobs = [world.submit() for _ in range(6)]
        world.nodes.rooted.update(jobs)
        world.start()
        busy, thawed = 0, dict.fromkeys(jobs, 0)
        for _ in range(60 * int(SLICE_SECONDS)):
            await asyncio.sleep(1)
            busy += len(world.running())
            for job in jobs:
                waits = world.state(job) is JobState.RUNNING and job not in world.running()
                thawed[job] = thawed[job] + 1 if waits else 0
                assert thawed[job] < 4, f"job {job} is off its GPU and not suspended in Slurm"
        await world.stop()
        assert {refusals(world, job) for job in jobs} == {0, 1}
        # All have worked, and no GPU was held for a job that cannot use it.
        assert all(world.worked_seconds(job) > 15 * SLICE_SECONDS for job in jobs)
        assert busy / (60 * SLICE_SECONDS) > 3.6
        world.check()

    run(scenario)
