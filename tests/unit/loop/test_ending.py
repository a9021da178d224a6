# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that end by themselves while something is being done to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.model import JobId
from controller.simulation.virtual_time import run_virtual
from controller.slurm.port import JobState
from controller.slurm.simulated import SimulatedCluster
from tests.unit.loop.world import SLICE_SECONDS, World


class EndsBeforeTheCall(SimulatedCluster):
    """Where jobs end just before Slurm is asked to suspend them."""

    async def suspend(self, job_id: JobId) -> None:
        self._end(self.jobs[job_id], "COMPLETED")
        await super().suspend(job_id)


def test_a_job_that_ends_before_slurm_suspends_it_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        ends = EndsBeforeTheCall(world.cluster.nodes, world.cluster.costs)
        world.cluster_port = world.cluster = world.nodes.cluster = ends
        world.nodes.__post_init__()
        first, second = world.submit(), world.submit()
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.state(first) is JobState.ENDED
        assert world.running() == {int(second)}
        assert "suspend failed" not in caplog.text
        await world.stop()
        world.check()

    run_virtual(scenario())
