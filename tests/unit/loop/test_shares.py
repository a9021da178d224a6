# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading the shares: seldom, beside the turns, and what was read last stands while Slurm does not answer."""

from __future__ import annotations

import asyncio

from controller.act.recorder import Recorder
from controller.cluster.simulated import make_nodes
from controller.journal.memory import MemoryJournal
from controller.loop.conditions import Conditions
from controller.loop.shares import ShareReader
from controller.model import Share
from controller.simulation.virtual_time import VirtualClock
from tests.contract.troubled import TroubledCluster

TREE = (Share("root", None, 1.0, 1.0), Share("root/root", "root", 1.0, 0.0, 1.0))


class World:
    """A reader on a simulated cluster."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, ...]] = []
        self.changes = 0
        nodes = {node.name: node for node in make_nodes(["n1"], 1)}
        self.cluster = TroubledCluster(nodes, tree=TREE)
        conditions = Conditions(Recorder(MemoryJournal()), VirtualClock(), self.reports.append)
        self.reader = ShareReader(self.cluster, conditions, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def known(self, now: float) -> tuple[Share, ...]:
        """After a read that began at this time, if one was due."""
        self.reader.known(now, 60.0)
        for _ in range(5):
            await asyncio.sleep(0)
        return tuple(self.reader.known(now, 60.0).values())


async def test_no_turn_waits_for_the_shares() -> None:
    world = World()
    assert world.reader.known(0.0, 60.0) == {}
    assert await world.known(1.0) == TREE
    assert world.changes == 1, "the loop is told"


async def test_they_are_read_as_often_as_the_setting_says() -> None:
    world = World()
    assert await world.known(0.0) == TREE
    world.cluster.tree = TREE[:1]
    assert await world.known(59.0) == TREE
    assert await world.known(60.0) == TREE[:1]
    world.cluster.tree = TREE
    assert await world.known(-1e6) == TREE, "the clock was set back"


async def test_the_same_shares_are_no_news() -> None:
    world = World()
    await world.known(0.0)
    before = world.reader.known(1.0, 60.0)
    await world.known(60.0)
    assert world.reader.known(61.0, 60.0) is before
    assert world.changes == 1


async def test_a_failed_read_keeps_the_last_and_says_so_once() -> None:
    world = World()
    await world.known(0.0)
    world.cluster.unavailable = True
    for now in (60.0, 120.0, 180.0):
        assert await world.known(now) == TREE
    (report,) = world.reports
    assert report == ("the shares of users are not known anew: slurmctld does not answer",)
    world.cluster.unavailable = False
    assert await world.known(240.0) == TREE
    assert world.reports[1:] == [()]
