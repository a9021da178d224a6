# SPDX-License-Identifier: GPL-2.0-or-later
"""Two things at the same time, and one at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.slurm.port import ClusterView
from controller.slurm.simulated import SimulatedCluster
from controller.errors import ClusterUnavailable, NodeError
from controller.nodes.port import NodeSample
from controller.nodes.simulated import SimulatedNodes
from controller.simulation.virtual_time import run_virtual
from controller.together import at_once, both
from tests.unit.loop.world import World


class Part:
    """Takes its time, also to end when it is told to."""

    def __init__(self, *, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.error = error
        self.seconds = seconds
        self.ended = False

    async def work(self) -> str:
        try:
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            return "done"
        finally:
            await asyncio.sleep(0.01)
            self.ended = True


async def test_both_results_in_order() -> None:
    assert await both(Part(seconds=0.01).work(), Part().work()) == ("done", "done")


@pytest.mark.parametrize("first_fails", [True, False])
async def test_when_one_fails_the_other_has_ended(first_fails: bool) -> None:
    fails, goes_on = Part(error=ValueError("no")), Part(seconds=3600)
    parts = (fails, goes_on) if first_fails else (goes_on, fails)
    with pytest.raises(ValueError, match="no"):
        await both(parts[0].work(), parts[1].work())
    assert goes_on.ended


async def test_both_have_ended_when_their_caller_is_told_to_end() -> None:
    parts = [Part(seconds=3600), Part(seconds=3600)]
    caller = asyncio.ensure_future(both(parts[0].work(), parts[1].work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert all(part.ended for part in parts)


async def test_an_error_is_not_hidden_by_the_end_of_the_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ValueError, match="first"):
        await both(Part(error=ValueError("first")).work(), Part(error=KeyError("second")).work())
    assert "second" in caplog.text


async def test_what_need_not_wait_is_done_at_once() -> None:
    done = []

    async def work() -> None:
        done.append("done")

    assert at_once(work(), "quick") is None
    assert done == ["done"]


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_what_has_to_wait_goes_on_as_a_task(seconds: float) -> None:
    done = []

    async def work() -> None:
        done.append("begun")
        await asyncio.sleep(seconds)
        assert asyncio.current_task() is not None
        await asyncio.sleep(seconds)
        done.append("ended")

    task = at_once(work(), "slow")
    assert done == ["begun"]
    assert task is not None and task.get_name() == "slow"
    await task
    assert done == ["begun", "ended"]


@pytest.mark.parametrize("begun", [False, True])
async def test_what_goes_on_as_a_task_can_be_ended(begun: bool) -> None:
    part = Part(seconds=3600)

    async def work() -> None:
        await part.work()

    task = at_once(work(), "endless")
    assert task is not None
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert part.ended


async def test_an_error_before_the_first_wait_is_the_callers() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        at_once(work(), "wrong")


def test_the_nodes_are_not_asked_twice_at_once_when_slurm_fails(tmp_path: Path) -> None:
    class Down(SimulatedCluster):
        down = True

        async def observe(self) -> ClusterView:
            if self.down:
                raise ClusterUnavailable("observing the cluster: no")
            return await super().observe()

    class Slow(SimulatedNodes):
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

    run_virtual(scenario(), start=1_000_000.0)
