# SPDX-License-Identifier: GPL-2.0-or-later
"""A GPU with memory of a process that belongs to no job of the cluster is given to no job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.model import GpuId, JobId
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuProcess
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import World, run

TAKEN = GpuId("n1", 0)


class Visited(TroubledNodes):
    """A node on whose first GPU a process has memory. (Its agent lets a job start there all the same: what is
    tested is that the controller does not ask for it.)"""

    stranger: GpuProcess | None = None

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        samples = await super().observe(deadline_seconds)
        return {n: self._visited(s) if isinstance(s, NodeSample) else s for n, s in samples.items()}

    def _visited(self, sample: NodeSample) -> NodeSample:
        if self.stranger is None:
            return sample
        first, *others = sample.gpus
        visited = replace(first, processes=(*first.processes, self.stranger))
        return replace(sample, gpus=(visited, *others))


@pytest.mark.parametrize("job_id", [None, JobId(4711)], ids=["no job", "a job unknown to Slurm"])
def test_no_job_gets_the_gpu_until_the_stranger_has_gone(tmp_path: Path, job_id: JobId | None) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        nodes = Visited(world.cluster)
        nodes.stranger = GpuProcess(900, job_id, 1000, 1 << 30)
        world.node_port = world.nodes = nodes
        jobs = [world.submit(), world.submit()]
        world.start()

        def used() -> set[GpuId]:
            return {gpu for job in jobs for gpu in world.cluster.jobs[job].binding}

        for _ in range(60):
            await asyncio.sleep(1)
            assert TAKEN not in used() and len(world.running()) <= 1
        assert len(used()) == 1, "the other GPU is theirs, in turn"
        nodes.stranger = None
        jobs.append(world.submit())
        await asyncio.sleep(60)
        assert TAKEN in used() and len(world.running()) == 2
        await world.stop()
        world.check()

    run(scenario)
