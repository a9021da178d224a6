# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that end by themselves while something is being done to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.journal import JobFilter, JournalReader
from controller.model import JobId
from controller.simulation.virtual_time import run_virtual
from controller.slurm.port import JobState
from controller.slurm.simulated_job import SimulatedJob
from tests.contract.troubled import TroubledCluster
from tests.unit.loop.world import SLICE_SECONDS, World


class EndsBeforeTheCall(TroubledCluster):
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


class Completes(TroubledCluster):
    """Where an epilog runs: for some seconds a job that is over is COMPLETING, with its end."""

    def _end(self, job: SimulatedJob, state_name: str, end_time: float | None = None) -> None:
        was_over = job.state is JobState.ENDED
        super()._end(job, state_name, end_time)
        if not was_over:
            self._to(job, JobState.COMPLETING)
            asyncio.get_running_loop().call_later(3, self._to, job, JobState.ENDED, state_name)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("kind", [TroubledCluster, Completes])
def test_a_job_that_is_cancelled_while_it_is_suspended_ends_then(
    tmp_path: Path, away: bool, kind: type[TroubledCluster]
) -> None:
    """Slurm says when it was suspended last. `away`: no controller runs when it ends."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        ends = kind(world.cluster.nodes, world.cluster.costs)
        world.cluster_port = world.cluster = world.nodes.cluster = ends
        world.nodes.__post_init__()
        jobs = [world.submit(), world.submit()]
        world.start()
        await asyncio.sleep(1.9 * SLICE_SECONDS)
        (job,) = (job for job in jobs if world.state(job) is JobState.SUSPENDED)
        if away:
            await world.kill()
        ended_at = world.cluster.clock()
        world.cluster.cancel(job)
        told = world.cluster.jobs[job].end_time
        assert told is not None and told < ended_at - 0.5 * SLICE_SECONDS
        for number in range(2):  # the second one is told the end again
            if away or number:
                await asyncio.sleep(2)
                world.start()
            await asyncio.sleep(4)
            rows = JournalReader(world.journal_path).jobs(JobFilter(), now=world.cluster.clock())
            (row,) = (row for row in rows if row.record.id == job)
            assert row.record.end_time == pytest.approx(ended_at, abs=2.5)
            await world.kill()
        world.check()

    run_virtual(scenario())
