# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy jobs kept their GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.journal import JobFilter, JournalReader
from controller.nodes.port import NodeSample
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import SLICE_SECONDS, World, run


class Busy(TroubledNodes):
    """The GPU is as busy as the job on it makes it, and NVML says so of the second before."""

    by_job: Mapping[int, float] = {}
    _last = 0.0

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        samples = await super().observe(deadline_seconds)
        sample = samples["n1"]
        assert isinstance(sample, NodeSample)
        (gpu,) = sample.gpus
        said, self._last = self._last, max((self.by_job[p.job_id or 0] for p in gpu.processes), default=0.0)
        return {"n1": NodeSample("n1", sample.time, (replace(gpu, utilization_fraction=said),), sample.jobs)}


@pytest.mark.parametrize("killed", [False, True])
def test_each_jobs_own_utilization_is_in_the_journal(tmp_path: Path, killed: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.node_port = world.nodes = busy = Busy(world.cluster, world.nodes.costs)
        jobs = [world.submit() for _ in range(2)]
        busy.by_job = {jobs[0]: 0.9, jobs[1]: 0.2}
        world.start()
        await asyncio.sleep(20 * SLICE_SECONDS)
        if killed:
            await world.kill()
            world.start()
            await asyncio.sleep(3)
        await world.stop()
        rows = {row.record.id: row.record for row in JournalReader(world.journal_path).jobs(JobFilter())}
        assert rows[jobs[0]].utilization_fraction == pytest.approx(0.9, abs=0.03)
        assert rows[jobs[1]].utilization_fraction == pytest.approx(0.2, abs=0.03)
        world.check()

    run(scenario)
