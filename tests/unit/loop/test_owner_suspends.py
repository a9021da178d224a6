# SPDX-License-Identifier: GPL-2.0-or-later
"""On Slurm 26.05 a job's owner may suspend and resume it (24.11 lets operators only): the next turn puts the
job back to where the plan has it, and no GPU has two owners meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.model import JobId
from tests.unit.loop.world import SLICE_SECONDS, World, run


@pytest.mark.parametrize("call", ["suspend", "resume"])
def test_what_an_owner_suspends_or_resumes_is_put_back(tmp_path: Path, call: str) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = {world.submit(work_seconds=100 * SLICE_SECONDS) for _ in range(2)}
        world.start()
        for _ in range(5):
            await asyncio.sleep(SLICE_SECONDS * 1.25)
            (running,) = map(JobId, world.running())
            (waiting,) = jobs - {running}
            await (world.cluster.suspend(running) if call == "suspend" else world.cluster.resume(waiting))
            await asyncio.sleep(SLICE_SECONDS / 2)
            states = [world.state(job) for job in jobs]
            assert sorted(states) == [JobState.RUNNING, JobState.SUSPENDED] and len(world.running()) == 1
        await world.stop()
        world.check()

    run(scenario)
