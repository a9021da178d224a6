# SPDX-License-Identifier: GPL-2.0-or-later
"""slurmctld forgets its last moments when it is killed, and gives ids out again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from typing_extensions import Unpack

from controller.cluster.simulated import request_text
from controller.cluster.simulated_job import SimulatedJob
from controller.model import JobId
from controller.nodes.port import Place
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import World, run


class Waiting(TroubledNodes):
    """Nodes that are asked to prepare, and wait."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def prepare(self, node: str, job_id: JobId, *, uid: int, **place: Unpack[Place]) -> None:
        self.asked.set()
        await self.goes_on.wait()
        await super().prepare(node, job_id, uid=uid, **place)


def test_a_start_under_way_does_not_go_on_with_the_job_that_has_the_id_now(tmp_path: Path) -> None:
    """That one may not start yet."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.node_port = world.nodes = nodes = Waiting(world.cluster)
        job_id = world.submit()
        world.start()
        await asyncio.wait_for(nodes.asked.wait(), 60.0)
        now = world.cluster.clock()
        other = SimulatedJob(job_id, "bob", request_text(1), 1e9, now, uid=2002, eligible=False)
        world.cluster.add(other)
        await asyncio.sleep(5.0)
        nodes.goes_on.set()
        await asyncio.sleep(5.0)
        assert other.held and not other.wanted
        other.eligible = True
        world.cluster.touch(job_id)
        await asyncio.sleep(30.0)
        assert world.running() == {int(job_id)}
        await world.stop()
        world.check()

    run(scenario)
