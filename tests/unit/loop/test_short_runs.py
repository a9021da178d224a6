# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that are over before anybody has seen them run: Slurm knows when they ran."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.messages import ExplainMessage, JobMessage
from controller.cluster.port import ClusterJob, ClusterView, JobState
from controller.journal import JobFilter, JournalReader
from controller.model import JobId
from controller.reports.explain import explain
from tests.contract.troubled import TroubledCluster
from tests.unit.loop.world import World, run

START = 1_000_000.0


class CleansUp(TroubledCluster):
    """Ended jobs are COMPLETING for two seconds."""

    def _shown(self, job: ClusterJob) -> ClusterJob:
        over = job.end_time is not None and self.clock() < job.end_time + 2.0
        return replace(job, state=JobState.COMPLETING, state_name="COMPLETING") if over else job

    async def observe(self) -> ClusterView:
        view = await super().observe()
        return replace(view, jobs=tuple(self._shown(job) for job in view.jobs))

    async def job(self, job_id: JobId) -> ClusterJob:
        return self._shown(await super().job(job_id))


@pytest.mark.parametrize("cleans_up", [False, True])
def test_what_slurm_states_is_charged_and_reported(tmp_path: Path, cleans_up: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        if cleans_up:
            slow = CleansUp(world.cluster.nodes, world.cluster.costs)
            world.cluster_port = world.cluster = world.nodes.cluster = slow
            world.nodes.__post_init__()
        job = world.submit(work_seconds=0.01)
        world.start()
        await asyncio.sleep(10)
        await world.stop()
        told = world.cluster.jobs[job]
        (row,) = JournalReader(world.journal_path).jobs(JobFilter())
        assert row.record.state == "COMPLETED"
        assert row.record.start_time == told.start_time
        assert row.record.end_time == told.end_time
        assert row.slices == 1
        assert row.run_seconds == row.gpu_seconds == pytest.approx(0.01)
        (piece,) = JournalReader(world.journal_path).slices(job)
        assert (piece.start, piece.end, piece.reason) == (told.start_time, told.end_time, "job ended")
        said = "\n".join(
            explain(ExplainMessage(time=START + 10, job=JobMessage.of_row(row)), rows=8, columns=100)
        )
        assert "from submission to start" in said and "in 1 slice" in said
        assert "without having started" not in said
        assert JournalReader(world.journal_path).events(job) == []
        world.check()

    run(scenario)


def test_a_job_that_is_cancelled_before_it_starts_has_not_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        job = world.submit()
        world.start()
        await asyncio.sleep(0.1)
        assert not world.cluster.jobs[job].held
        world.cluster.cancel(job)
        await asyncio.sleep(10)
        await world.stop()
        (row,) = JournalReader(world.journal_path).jobs(JobFilter())
        assert (row.record.state, row.record.start_time, row.slices) == ("CANCELLED", None, 0)
        world.check()

    run(scenario)
