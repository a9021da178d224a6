# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm answers late: what has ended meanwhile is newer than the answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.act.actions import Place
from controller.cluster.port import ClusterView
from controller.cluster.simulated import SlurmCosts
from tests.contract.troubled import TroubledCluster, TroubledNodes
from tests.unit.loop.world import World, run

ANSWER_SECONDS = 3.0


class Late(TroubledCluster):
    """Says what was true when it was asked."""

    async def observe(self) -> ClusterView:
        view = await super().observe()
        await asyncio.sleep(ANSWER_SECONDS)
        return view


def test_a_job_that_started_while_slurm_was_answering_is_not_taken_for_one_that_waits(tmp_path: Path) -> None:
    """Its GPU would be free for others, who have no business there."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = Late(
            world.cluster.nodes, SlurmCosts(0.005, start_seconds=ANSWER_SECONDS, requeue_seconds=0.1)
        )
        world.cluster = world.cluster_port = cluster
        world.node_port = world.nodes = TroubledNodes(cluster)
        first, _waits = world.submit(), world.submit()
        world.start()
        await asyncio.sleep(4 * ANSWER_SECONDS)
        assert [(action.job_id, type(action)) for cycle in world.cycles for action in cycle.actions] == [
            (first, Place)
        ]
        assert world.running() == {int(first)}
        await world.stop()
        world.check()

    run(scenario)
