# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that end by themselves while something is being done to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.cluster.simulated_job import SimulatedJob
from controller.journal import JobFilter, JournalReader
from controller.model import JobId
from controller.simulation.virtual_time import run_virtual
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


EPILOG_SECONDS = 60


EPILOG_SECONDS = 60


class Completes(TroubledCluster):
    """Where a long epilog runs: meanwhile a job that is over is COMPLETING, with its end."""

    def _end(self, job: SimulatedJob, state_name: str, end_time: float | None = None) -> None:
        was_over = job.state is JobState.ENDED
        super()._end(job, state_name, end_time)
        if not was_over:
            self._to(job, JobState.COMPLETING)
            asyncio.get_running_loop().call_later(EPILOG_SECONDS, self._to, job, JobState.ENDED, state_name)


@pytest.mark.parametrize("away", [None, (0, 2), (0, 90), (20, 2), (20, 90)])
@pytest.mark.parametrize("kind", [TroubledCluster, Completes])
def test_a_job_that_is_cancelled_while_it_is_suspended_ends_then(
    tmp_path: Path, away: tuple[int, int] | None, kind: type[TroubledCluster]
) -> None:
    """Slurm says when it was suspended last. `away`: so many seconds after the end there is no controller,
    and for so many."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        ends = kind(world.cluster.nodes, world.cluster.costs)
        world.cluster_port = world.cluster = world.nodes.cluster = ends
        world.nodes.__post_init__()
        jobs = [world.submit(), world.submit()]
        world.start()
        await asyncio.sleep(1.9 * SLICE_SECONDS)
        (job,) = (job for job in jobs if world.state(job) is JobState.SUSPENDED)

        async def be_away(seconds: float) -> None:
            await world.kill()
            await asyncio.sleep(seconds)
            world.start()

        ended_at = world.cluster.clock()
        if away is not None and away[0] == 0:
            asyncio.get_running_loop().call_soon(world.cluster.cancel, job)
            await be_away(away[1])
        else:
            world.cluster.cancel(job)
        told = world.cluster.jobs[job].end_time
        assert told is not None and told < ended_at - 0.5 * SLICE_SECONDS
        if away is not None and away[0]:
            await asyncio.sleep(away[0])
            await be_away(away[1])
        await asyncio.sleep(EPILOG_SECONDS + 4)
        for _ in range(2):  # the second controller is told the end again
            rows = JournalReader(world.journal_path).jobs(JobFilter(), now=world.cluster.clock())
            (row,) = (row for row in rows if row.record.id == job)
            assert row.record.end_time == pytest.approx(ended_at, abs=2.5)
            await be_away(2)
            await asyncio.sleep(4)
        await world.kill()
        world.check()

    run_virtual(scenario())
