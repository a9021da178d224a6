# SPDX-License-Identifier: GPL-2.0-or-later
"""A suspended job that ends takes its time in Slurm, while another one runs on its GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.cluster.port import JobState
from controller.journal import JournalReader
from controller.model import JobId
from tests.unit.loop.world import SLICE_SECONDS, World, run


def test_it_throws_no_other_off_its_gpus(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = [world.submit(), world.submit()]
        world.start()
        await asyncio.sleep(1.5 * SLICE_SECONDS)
        (running,) = world.running()
        (suspended,) = {int(job) for job in jobs} - {running}
        assert world.state(JobId(suspended)) is JobState.SUSPENDED
        world.cluster._to(world.cluster.jobs[JobId(suspended)], JobState.COMPLETING)
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.running() == {running}
        assert len(JournalReader(world.journal_path).decisions(JobId(running))) == 1
        await world.stop()

    run(scenario)
