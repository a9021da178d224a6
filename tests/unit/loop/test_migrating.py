# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that starts again from its own checkpoint goes on on other GPUs, so that a gang finds its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.journal.reader import JournalReader
from controller.model import JobId
from controller.policies.moves.defragment import Defragment
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import DefragmentSettings, FifoSkipSettings
from tests.unit.loop.world import World, gandiva, run


@pytest.fixture(params=["gandiva", "fifo-skip"])
def policy(request: pytest.FixtureRequest) -> Policy:
    move = Defragment(DefragmentSettings(free_fraction=0.5))
    return gandiva(move) if request.param == "gandiva" else PRESETS["fifo-skip"](FifoSkipSettings(), (move,))


def nodes(world: World, *jobs: JobId) -> list[tuple[str, ...]]:
    return [world.cluster.jobs[job].nodes for job in jobs]


@pytest.mark.parametrize("deltas", [False, True])
def test_a_gang_starts_where_a_job_has_left(tmp_path: Path, policy: Policy, deltas: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=2, policy=policy, deltas=deltas)
        mover = world.submit(1, work_seconds=300, suspend="requeue")
        world.start()
        await asyncio.sleep(3)
        (at,) = nodes(world, mover)
        world.cluster.set_node(at[0], up=False)
        stays = world.submit(1, work_seconds=300)
        await asyncio.sleep(3)
        world.cluster.set_node(at[0], up=True)
        await asyncio.sleep(3)
        assert sorted(nodes(world, mover, stays)) == [("n1",), ("n2",)], "one GPU is free on each"
        gang = world.submit(2, work_seconds=30)
        await asyncio.sleep(5)
        assert nodes(world, mover, stays) == [nodes(world, stays)[0]] * 2
        assert nodes(world, gang) == [at]
        decisions = JournalReader(world.journal_path).decisions(mover)
        reasons = [decision.reason for decision in decisions if decision.action == "requeue"]
        to = nodes(world, stays)[0][0]
        assert reasons == [f"migrates: goes on on {to}: {at[0]} is cleared for job {gang} (2 GPUs)"]
        await world.until_ended([gang, mover], 600)
        await world.stop()
        world.check()

    run(scenario)
