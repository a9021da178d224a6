# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller's side: whoever does not lead does nothing, in Slurm neither."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.port import ClusterView
from controller.daemon.leadership import (
    LEASE_SECONDS,
    Fence,
    fenced,
    introduction,
    renew,
    rival,
)
from controller.errors import NodeError, NotLeading
from controller.journal.lock import JournalLock
from controller.model import JobId
from controller.nodes.connection import Patience
from controller.nodes.protocol import HelloArgs
from controller.nodes.remote import RemoteNodes
from controller.settings.schema import NodesSettings
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.world import World
from tests.unit.nodes.test_connection import OBSERVED, QUICK, FakeTransport, hello

ONE = JobId(1)
ME = HelloArgs(controller="me:/j")
REFUSAL = {"error": {"kind": "not_leader", "message": "controller b:/j leads here"}}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lock(tmp_path: Path) -> JournalLock:
    lock = JournalLock(tmp_path / "j")
    assert lock.take()
    return lock


def test_the_introduction_is_of_the_host_and_the_journal() -> None:
    one = introduction(Path("/var/lib/gandiva/journal.sqlite"))
    assert one == introduction(Path("/var/lib/gandiva/journal.sqlite"))
    assert one.controller is not None and one.controller.endswith(":/var/lib/gandiva/journal.sqlite")
    assert introduction(Path("/tmp/other")).controller != one.controller
    odd = introduction(Path("/tmp/ö dd/" + "x" * 500)).controller
    assert odd is not None and len(odd) == 200


def test_long_and_odd_paths_tell_hosts_and_journals_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two controllers of one name would lead together."""
    paths = [Path("/srv") / ("x" * 300) / end for end in ("a", "b")] + [Path("/tmp/\xf6"), Path("/tmp/\xe4")]
    names = []
    for host in ("ctl1", "ctl2"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names += [introduction(path).controller for path in paths]
    assert len(set(names)) == len(names)
    assert all(name is not None and name.startswith("ctl") for name in names)


def test_a_lease_that_was_not_renewed_closes_the_fence_and_renewing_opens_it(lock: JournalLock) -> None:
    clock = Clock()
    fence = Fence(lock, clock)
    fence.check()
    fence.answered(fence.before("observe"), None)
    clock.now += LEASE_SECONDS
    fence.check()
    clock.now += 0.1
    with pytest.raises(NotLeading, match="no node has confirmed for 10 s"):
        fence.check()
    with pytest.raises(NotLeading):
        fence.before("offload")
    asked_at = fence.before("lead")  # asking is not acting
    clock.now += LEASE_SECONDS + 1
    fence.answered(asked_at, None)
    with pytest.raises(NotLeading, match="for 11 s"):
        fence.check()  # the answer was too late: what counts is when it was asked for
    fence.answered(fence.before("lead"), None)
    fence.check()


def test_answers_may_come_in_any_order(lock: JournalLock) -> None:
    clock = Clock()
    fence = Fence(lock, clock)
    first = fence.before("observe")
    clock.now += 5
    second = fence.before("lead")
    fence.answered(second, None)
    fence.answered(first, None)
    clock.now += LEASE_SECONDS - 1
    fence.check()


def test_a_node_that_obeys_another_one_closes_it_until_it_is_opened_again(lock: JournalLock) -> None:
    fence = Fence(lock, Clock())
    fence.answered(fence.before("observe"), NodeError("n1", "not_leader", "controller b leads"))
    fence.answered(fence.before("observe"), None)
    with pytest.raises(NotLeading, match="node n1: controller b leads"):
        fence.check()
    fence.reopen()
    fence.check()
    fence.answered(fence.before("observe"), NodeError("n1", "unreachable", "gone"))
    fence.check()


def test_a_lock_file_that_was_removed_closes_it(lock: JournalLock) -> None:
    fence = Fence(lock)
    lock.path.unlink()
    with pytest.raises(NotLeading, match="was removed"):
        fence.check()


def test_no_call_that_changes_something_passes_a_closed_fence(lock: JournalLock) -> None:
    called: list[str] = []

    class Cluster:
        def __getattr__(self, name: str) -> Any:
            async def call(*_arguments: object) -> None:
                called.append(name)

            return call

    clock = Clock()
    fence = Fence(lock, clock)
    cluster = fenced(Cluster(), fence)
    calls: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "bind": lambda: cluster.bind(ONE, frozenset()),
        "unbind": lambda: cluster.unbind(ONE),
        "release": lambda: cluster.release(ONE),
        "hold": lambda: cluster.hold(ONE),
        "suspend": lambda: cluster.suspend(ONE),
        "resume": lambda: cluster.resume(ONE),
        "requeue": lambda: cluster.requeue(ONE),
        "end": lambda: cluster.end(ONE, "reason"),
        "reserve": lambda: cluster.reserve(ONE, frozenset(), 60.0),
        "unreserve": lambda: cluster.unreserve(ONE),
    }

    async def all_of_them() -> None:
        for call in calls.values():
            await call()

    asyncio.run(all_of_them())
    assert called == list(calls)
    fence.answered(fence.before("observe"), None)
    clock.now += 100
    for call in calls.values():
        with pytest.raises(NotLeading):
            asyncio.run(call())
    asyncio.run(cluster.job(ONE))
    asyncio.run(cluster.observe())
    assert called == [*calls, "job", "observe"], "looking is free"


# -- with nodes ----------------------------------------------------------------------------------------


def node(request: dict[str, Any]) -> dict[str, Any] | None:
    """A node that obeys us."""
    if request["verb"] == "hello":
        return hello("n1")
    return OBSERVED if request["verb"] == "observe" else {}


def taken(request: dict[str, Any]) -> dict[str, Any] | None:
    """A node that obeys somebody else."""
    if request["verb"] == "hello":
        return {**hello("n2"), "leader": {"controller": "b:/j", "seconds": 7.0}}
    return REFUSAL


class Slurm:
    """A cluster port that knows no nodes: these are given to the node port by the test."""

    def __init__(self, nodes: RemoteNodes) -> None:
        self.nodes = nodes

    async def observe(self) -> ClusterView:
        return ClusterView(0.0, (), ())


def nodes_of(transport: FakeTransport, fence: Fence) -> RemoteNodes:
    return RemoteNodes(transport, QUICK, introduction=ME, guard=fence)


def test_one_node_that_obeys_another_controller_is_enough(lock: JournalLock) -> None:
    transport = FakeTransport(n1=node, n2=taken)
    fence = Fence(lock)

    async def scenario() -> None:
        nodes = nodes_of(transport, fence)
        await nodes.set_nodes(dict.fromkeys(transport.nodes, "somewhere"))
        found = await nodes.leaders(60.0, 60.0)
        assert {n: leader and leader.controller for n, leader in found.items()} == {"n1": None, "n2": "b:/j"}
        fence.check()
        await nodes.observe(60.0)
        with pytest.raises(NotLeading, match="node n2: controller b:/j leads here"):
            fence.check()
        with pytest.raises(NotLeading):
            await nodes.forget("n1", ONE)
        await nodes.close()

    asyncio.run(scenario())
    verbs = {(r["verb"], bool(r["args"])) for channel in transport.channels for r in channel.requests}
    assert verbs == {("hello", True), ("hello", False), ("observe", False)}, "nothing was asked to act"


def test_renewing_keeps_the_fence_open(lock: JournalLock) -> None:
    transport = FakeTransport(n1=node)
    clock = Clock()
    fence = Fence(lock, clock)

    async def scenario() -> None:
        nodes = nodes_of(transport, fence)
        await nodes.set_nodes({"n1": "somewhere"})
        await nodes.observe(60.0)
        for _ in range(5):
            clock.now += 9
            assert await nodes.lead(60.0) == {"n1": None}
            fence.check()
        await nodes.close()

    asyncio.run(scenario())


def test_who_else_leads_is_asked_before_anything_is_taken(lock: JournalLock) -> None:
    class Known(RemoteNodes):
        async def set_nodes(self, addresses: Any) -> None:
            await super().set_nodes(addresses or dict.fromkeys(transport.nodes, "somewhere"))

    transport = FakeTransport(n1=node, n2=taken)

    async def scenario() -> str:
        nodes = Known(transport, QUICK, introduction=ME, guard=Fence(lock))
        try:
            slurm: Any = Slurm(nodes)
            return await rival(slurm, nodes, NodesSettings(observe_deadline_seconds=60.0), ME)
        finally:
            await nodes.close()

    assert asyncio.run(scenario()) == "standby: controller b:/j leads on node n2"
    assert {r["verb"] for channel in transport.channels for r in channel.requests} == {"hello"}


def test_a_node_that_is_silent_costs_the_others_no_lease() -> None:
    answered: list[float] = []

    class Nodes:
        async def lead(self, deadline_seconds: float) -> dict[str, None]:
            answered.append(asyncio.get_running_loop().time())
            await asyncio.sleep(deadline_seconds + 5)
            return {}

    async def scenario() -> None:
        nodes: Any = Nodes()
        task = asyncio.create_task(renew(nodes))
        await asyncio.sleep(60)
        task.cancel()

    run_virtual(scenario())
    gaps = [later - sooner for sooner, later in pairwise(answered)]
    assert len(gaps) > 15 and max(gaps) < LEASE_SECONDS / 2


def test_nodes_that_are_slow_are_waited_for_until_one_has_answered(lock: JournalLock) -> None:
    def slow(request: dict[str, Any]) -> dict[str, Any] | None:
        time.sleep(0.4)
        return taken(request)

    def silent(_request: dict[str, Any]) -> bytes:
        return b""

    async def scenario(transport: FakeTransport) -> dict[str, Any]:
        nodes = RemoteNodes(transport, Patience(connect_seconds=120.0), introduction=ME, guard=Fence(lock))
        await nodes.set_nodes(dict.fromkeys(transport.nodes, "somewhere"))
        try:
            return dict(await nodes.leaders(0.05, 120.0))
        finally:
            await nodes.close()

    assert set(asyncio.run(scenario(FakeTransport(n1=silent, n2=slow)))) == {"n2"}
    began = time.monotonic()
    assert set(asyncio.run(scenario(FakeTransport(n1=silent, n2=taken)))) == {"n2"}
    assert time.monotonic() - began < 60.0, "one that never answers is not waited for"


def test_a_controller_that_loses_its_lease_ends_its_turn_before_it_acts(
    tmp_path: Path, lock: JournalLock
) -> None:
    fence = Fence(lock)
    world = World(tmp_path / "w", gpus=1)
    (tmp_path / "w").mkdir()
    world.cluster_port = fenced(world.cluster, fence)

    async def scenario() -> None:
        jobs = [world.submit(work_seconds=1e9) for _ in range(2)]
        world.start()
        await asyncio.sleep(12.5)
        before = {job: world.state(job) for job in jobs}
        fence.answered(0.0, NodeError("n1", "not_leader", "controller b leads"))
        await asyncio.sleep(60)
        assert world._task is not None and isinstance(world._task.exception(), NotLeading)
        assert {job: world.state(job) for job in jobs} == before, "Slurm was asked for nothing"

    run_virtual(scenario())
