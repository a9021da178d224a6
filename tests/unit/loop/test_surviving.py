# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that Slurm has as pending while it lives on a node (its start was forgotten) is not started twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuProcess, NodeJob, NodePhase, RankSample, RankState
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import World, run


class Forgotten(TroubledNodes):
    """Nodes with jobs that Slurm knows nothing of: with a session, or with memory on a GPU."""

    with_session: frozenset[JobId] = frozenset()
    with_memory: frozenset[JobId] = frozenset()

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        samples = await super().observe(deadline_seconds)
        return {n: self._lived_on(s) if isinstance(s, NodeSample) else s for n, s in samples.items()}

    def _lived_on(self, sample: NodeSample) -> NodeSample:
        rank = RankSample(0, RankState.RUNNING, 1, 0.0, 0.1, 1, 0, 0)
        sessions = {j: NodeJob(j, NodePhase.RUNNING, (0,), (rank,)) for j in self.with_session}
        processes = tuple(GpuProcess(900 + int(j), j, 1000, 1 << 30) for j in self.with_memory)
        gpus = tuple(replace(gpu, processes=(*gpu.processes, *processes)) for gpu in sample.gpus)
        return NodeSample(sample.node, sample.time, gpus, {**sample.jobs, **sessions})


@pytest.mark.parametrize("seen_by", ["with_session", "with_memory"])
def test_it_waits_until_it_has_gone_and_others_are_not_kept(tmp_path: Path, seen_by: str) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        nodes = Forgotten(world.cluster)
        world.node_port = world.nodes = nodes
        forgotten, other = world.submit(work_seconds=5), world.submit(work_seconds=5)
        setattr(nodes, seen_by, frozenset({forgotten}))
        world.start()
        await world.until_ended([other], 60)
        assert world.state(forgotten) is JobState.PENDING
        setattr(nodes, seen_by, frozenset())
        await world.until_ended([forgotten], 60)
        await world.stop()
        world.check()

    run(scenario)
