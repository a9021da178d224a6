# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm and the nodes are asked at the same time, and no request is left under way when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.port import ClusterView
from controller.cluster.simulated import make_nodes
from controller.errors import ClusterUnavailable, NodeError
from controller.loop.poller import Poller
from controller.nodes.port import NodeSample
from tests.contract.troubled import TroubledCluster, TroubledNodes
from tests.unit.loop.world import World, run


class Port:
    """Stands for one of the two: takes its time, also to end when it is cancelled."""

    def __init__(self, answer: Any, *, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.answer, self.error, self.seconds = answer, error, seconds
        self.ended = False
        self.addresses: list[Mapping[str, str]] = []

    async def observe(self, *_: Any) -> Any:
        try:
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            return self.answer
        finally:
            await asyncio.sleep(0.01)
            self.ended = True

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        self.addresses.append(addresses)


def asking(cluster: Port, nodes: Port) -> Poller:
    return Poller(cluster, nodes)  # type: ignore[arg-type]


VIEW = ClusterView(0.0, (), tuple(make_nodes(["n1"], 1)))


async def test_both_answer_and_new_nodes_are_asked_after_slurm_has_named_them() -> None:
    cluster, nodes = Port(VIEW, seconds=0.01), Port({})
    assert await asking(cluster, nodes).ask({}, {"n1": "10.0.0.1"}, 1.0) == (VIEW, {})
    assert nodes.addresses == [{"n1": "10.0.0.1"}]


async def test_addresses_are_given_again_only_when_they_change() -> None:
    nodes = Port({"n1": NodeError("n1", "unreachable", "no answer")})
    ask = asking(Port(VIEW), nodes).ask
    for address in ("n1", "n1", "10.0.0.1"):
        await ask({}, {"n1": address}, 1.0)
    assert nodes.addresses == [{"n1": "n1"}, {"n1": "10.0.0.1"}]


@pytest.mark.parametrize("slurm_fails", [True, False])
async def test_when_one_fails_the_other_has_ended(slurm_fails: bool) -> None:
    error = ClusterUnavailable("no")
    cluster = Port(VIEW, error=error) if slurm_fails else Port(VIEW, seconds=0.05)
    nodes = Port({}, seconds=3600) if slurm_fails else Port({}, error=error)
    with pytest.raises(ClusterUnavailable, match="no"):
        await asking(cluster, nodes).ask({}, {}, 1.0)
    assert cluster.ended and nodes.ended


async def test_both_have_ended_when_their_caller_is_cancelled() -> None:
    cluster, nodes = Port(VIEW, seconds=3600), Port({}, seconds=3600)
    caller = asyncio.ensure_future(asking(cluster, nodes).ask({}, {}, 1.0))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert cluster.ended and nodes.ended


def test_the_nodes_are_not_asked_twice_at_once_when_slurm_fails(tmp_path: Path) -> None:
    class Down(TroubledCluster):
        down = True

        async def observe(self) -> ClusterView:
            await asyncio.sleep(0.1)
            if self.down:
                raise ClusterUnavailable("observing the cluster: no")
            return await super().observe()

    class Slow(TroubledNodes):
        asked = at_once = most_at_once = 0

        async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
            self.asked += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(60)
                return await super().observe(deadline_seconds)
            finally:
                self.at_once -= 1

    async def scenario() -> None:
        world = World(tmp_path)
        world.cluster_port = world.cluster = Down(world.cluster.nodes, world.cluster.costs)
        slow = Slow(world.cluster)
        world.node_port = world.nodes = slow
        world.start()
        await asyncio.sleep(10)
        assert slow.asked > 5
        assert slow.most_at_once == 1
        world.cluster.down = False
        await world.stop()

    run(scenario)
