# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller's end: agents that are slow, silent, wrong, gone, or back again."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from controller.errors import NodeError, NodeUnreachable
from controller.model import JobId
from controller.nodes import protocol
from controller.nodes.connection import Channel, Patience, TransportError
from controller.nodes.port import NodeSample
from controller.nodes.remote import RemoteNodes

T = TypeVar("T")
Reply = Callable[[dict[str, Any]], dict[str, Any] | bytes | None]

PATIENT = Patience(
    connect_seconds=30.0, grace_seconds=0.1, first_backoff_seconds=0.05, longest_backoff_seconds=0.2
)
"""On a busy machine even a connection to nothing takes its time."""
QUICK = replace(PATIENT, connect_seconds=0.5)
OBSERVED = {"time": 1.0, "gpus": [], "jobs": []}


def hello(node: str) -> dict[str, Any]:
    return {
        "protocol": "gandiva-agent",
        "version": protocol.VERSION,
        "node": node,
        "boot_id": "b",
        "driver_version": "580",
        "checkpoint_supported": True,
        "device_map_supported": True,
        "gpus": [],
    }


class FakeChannel:
    """An agent that answers as a function says: a result, raw bytes, or nothing."""

    def __init__(self, node: str, reply: Reply) -> None:
        self._node = node
        self._reply = reply
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.requests: list[dict[str, Any]] = []

    def read(self) -> bytes:
        return self._out.get()

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            request = json.loads(line)
            self.requests.append(request)
            found = self._reply(request)
            if found is None and request["verb"] == "hello":
                found = hello(self._node)
            if isinstance(found, bytes):
                self._out.put(found)
            elif found is not None:
                answer = {"id": request["id"], "ok": "error" not in found}
                answer.update(found if "error" in found else {"result": found})
                self._out.put(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        self._out.put(b"")

    def farewell(self) -> str:
        return "exit status 7"


class FakeTransport:
    """Nodes by name: a reply function, an exception to raise, or seconds to hang."""

    def __init__(self, **nodes: Reply | Exception | float) -> None:
        self.nodes = nodes
        self.connects: list[str] = []
        self.channels: list[FakeChannel] = []

    def connect(self, node: str, address: str) -> Channel:
        self.connects.append(node)
        behaviour = self.nodes[node]
        if isinstance(behaviour, Exception):
            raise behaviour
        if isinstance(behaviour, float):
            time.sleep(behaviour)
            raise TransportError("timed out at last")
        channel = FakeChannel(node, behaviour)
        self.channels.append(channel)
        return channel


def run(
    transport: FakeTransport,
    scenario: Callable[[RemoteNodes], Coroutine[Any, Any, T]],
    patience: Patience = PATIENT,
) -> T:
    async def inside() -> T:
        nodes = RemoteNodes(transport, patience)
        await nodes.set_nodes(dict.fromkeys(transport.nodes, "somewhere"))
        try:
            return await scenario(nodes)
        finally:
            await nodes.close()

    return asyncio.run(inside())


def healthy(request: dict[str, Any]) -> dict[str, Any] | None:
    return OBSERVED if request["verb"] == "observe" else None


def test_bad_nodes_are_named_and_delay_nobody() -> None:
    transport = FakeTransport(
        good=healthy,
        refusing=TransportError("no route to host"),
        hanging=120.0,
        silent=lambda _: None,
        wrong=lambda _: hello("another"),
        babbling=lambda _: b"Welcome to this machine\n",
    )

    def settled(found: Mapping[str, NodeSample | NodeError]) -> bool:
        reasons = {node: answer.message for node, answer in found.items() if isinstance(answer, NodeError)}
        assert all(isinstance(found[node], NodeUnreachable) for node in reasons)
        return (
            set(reasons) == {"refusing", "hanging", "silent", "wrong", "babbling"}
            and reasons["refusing"] == "no route to host"
            and ("connecting" in reasons["hanging"] or "no agent at" in reasons["hanging"])
            and reasons["silent"].startswith("no answer to observe")
            and "answers as node another" in reasons["wrong"]
            and "nonsense" in reasons["babbling"]
        )

    async def scenario(nodes: RemoteNodes) -> None:
        until = time.monotonic() + 60
        while not settled(found := await nodes.observe(0.6)):  # (once will do on a machine that is not busy)
            assert time.monotonic() < until, found

    run(transport, scenario, QUICK)


def test_a_node_that_does_not_answer_costs_one_deadline_and_its_late_answer_is_not_taken_for_news() -> None:
    """Operations have ended since it was asked: what it says of its GPUs may be over."""
    answers, asked = threading.Event(), 0

    def late(request: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal asked
        if request["verb"] != "observe":
            return None
        asked += 1
        number = asked
        answers.wait(60)
        return {**OBSERVED, "time": float(number)}

    names = {f"n{i}": healthy for i in range(20)}
    transport = FakeTransport(late=late, **names)

    async def scenario(nodes: RemoteNodes) -> None:
        for name in transport.nodes:
            await nodes.hello(name, 30.0)
        until = time.monotonic() + 60
        began = time.monotonic()
        found = await nodes.observe(1.0)
        first_seconds = time.monotonic() - began
        assert first_seconds < 10.0, "not the 30 s that are waited for answers"
        assert str(found["late"]) == "node late: no answer to observe within 1 s"
        began = time.monotonic()
        found = await nodes.observe(45.0)
        assert time.monotonic() - began < 30.0, "nobody waits for it"
        assert isinstance(found["late"], NodeUnreachable) and asked == 1
        assert all(isinstance(found[name], NodeSample) for name in names)
        answers.set()
        while not isinstance(sample := (await nodes.observe(30.0))["late"], NodeSample):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        assert sample.time > 1.0, "it was asked anew"

    run(transport, scenario, replace(PATIENT, grace_seconds=30.0))


def test_after_a_failure_calls_fail_at_once_until_it_is_time_to_try_again() -> None:
    transport = FakeTransport(n1=TransportError("down"))

    async def scenario(nodes: RemoteNodes) -> None:
        answers = [(await nodes.observe(30.0))["n1"] for _ in range(4)]
        assert transport.connects == ["n1"]
        # The same words each time: a change would be logged, with each look at a node that is away.
        (message,) = {str(answer) for answer in answers}
        assert isinstance(answers[-1], NodeUnreachable) and "down" in message
        transport.nodes["n1"] = healthy
        until = time.monotonic() + 60
        while not isinstance((await nodes.observe(30.0))["n1"], NodeSample):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)

    run(transport, scenario, replace(PATIENT, first_backoff_seconds=2.0, longest_backoff_seconds=2.0))


def test_answers_in_any_order_reach_who_asked() -> None:
    held: list[dict[str, Any]] = []

    def reply(request: dict[str, Any]) -> dict[str, Any] | bytes | None:
        if request["verb"] != "forget":
            return None
        held.append(request)
        if len(held) < 3:
            return None
        parts = [
            {"id": old["id"], "ok": False, "error": {"kind": "unknown_job", "message": str(old["args"])}}
            for old in reversed(held)
        ]
        return b"".join(json.dumps(part).encode() + b"\n" for part in parts)

    async def scenario(nodes: RemoteNodes) -> None:
        async def one(job_id: int) -> str:
            with pytest.raises(NodeError) as refused:
                await nodes.forget("n1", JobId(job_id))
            assert refused.value.kind == "unknown_job"
            return refused.value.message

        assert tuple(await asyncio.gather(one(1), one(2), one(3))) == (
            "{'job_id': 1}",
            "{'job_id': 2}",
            "{'job_id': 3}",
        )

    run(FakeTransport(n1=reply), scenario)


def test_a_channel_that_breaks_fails_what_is_under_way_and_is_made_anew() -> None:
    broken: list[int] = []

    def reply(request: dict[str, Any]) -> dict[str, Any] | bytes | None:
        if request["verb"] == "observe" and not broken:
            broken.append(1)
            return b""  # the end
        return healthy(request)

    transport = FakeTransport(n1=reply)

    async def scenario(nodes: RemoteNodes) -> None:
        answer = (await nodes.observe(30.0))["n1"]
        assert isinstance(answer, NodeUnreachable)
        assert "the agent has ended (exit status 7)" in answer.message
        until = time.monotonic() + 60
        while not isinstance((await nodes.observe(30.0))["n1"], NodeSample):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        assert len(transport.channels) == 2

    run(transport, scenario)


def test_an_agent_that_goes_silent_is_replaced_and_one_that_is_slow_is_not() -> None:
    silent = FakeTransport(n1=lambda _: None)
    busy = FakeTransport(n1=lambda request: healthy(request) if request["verb"] == "observe" else None)

    async def prepare(nodes: RemoteNodes, seconds: float) -> None:
        await nodes.prepare("n1", JobId(1), uid=5, gpus=[0], binding=[0], deadline_seconds=seconds)

    async def ask(nodes: RemoteNodes) -> None:
        await nodes.hello("n1", 30.0)
        slow = asyncio.ensure_future(prepare(nodes, 2.0))
        await asyncio.sleep(0)
        await nodes.observe(60.0)
        with pytest.raises(NodeUnreachable, match="no answer to prepare"):
            await slow

    async def silent_scenario(nodes: RemoteNodes) -> None:
        await nodes.hello("n1", 30.0)
        with pytest.raises(NodeUnreachable, match="no answer to prepare"):
            await prepare(nodes, 0.1)
        until = time.monotonic() + 60
        while len(silent.channels) < 2:
            assert time.monotonic() < until
            await nodes.observe(0.1)

    run(silent, silent_scenario)
    run(busy, ask)
    assert len(busy.channels) == 1


def test_an_answer_of_the_wrong_shape_is_an_error_of_that_node() -> None:
    transport = FakeTransport(n1=lambda request: {"time": "soon"} if request["verb"] == "observe" else None)

    async def scenario(nodes: RemoteNodes) -> None:
        answer = (await nodes.observe(30.0))["n1"]
        assert isinstance(answer, NodeError)
        assert answer.kind == "internal"

    run(transport, scenario)


def test_nodes_come_and_go() -> None:
    transport = FakeTransport(n1=healthy, n2=healthy)

    async def scenario(nodes: RemoteNodes) -> None:
        assert set(await nodes.observe(30.0)) == {"n1", "n2"}
        await nodes.set_nodes({"n2": "somewhere"})
        assert set(await nodes.observe(30.0)) == {"n2"}
        assert transport.connects == ["n1", "n2"]
        await nodes.set_nodes({"n2": "elsewhere"})
        await nodes.observe(30.0)
        assert transport.connects == ["n1", "n2", "n2"]
        with pytest.raises(NodeUnreachable, match="not one of the nodes"):
            await nodes.forget("n1", JobId(1))
        with pytest.raises(ValueError, match="no node name"):
            await nodes.set_nodes({"../n1": "x"})

    run(transport, scenario)


def test_what_goes_over_the_wire() -> None:
    transport = FakeTransport(
        n1=lambda request: (
            {"left_bytes": 5, "seconds": 0.5, "stopped_step": 7, "later": "field"}
            if request["verb"] != "hello"
            else None
        )
    )

    async def scenario(nodes: RemoteNodes) -> None:
        found = await nodes.offload(
            "n1", JobId(3), residual_limit_bytes=9, release_context=True, deadline_seconds=40.0
        )
        assert (found.left_bytes, found.stopped_step, found.empty) == (5, 7, False)
        await nodes.checkpoint("n1", JobId(3), residual_limit_bytes=9, deadline_seconds=40.0)

    run(transport, scenario)
    _, first, second = transport.channels[0].requests
    assert first["verb"] == "offload"
    assert first["args"] == {
        "job_id": 3,
        "deadline_seconds": 40.0,
        "residual_limit_bytes": 9,
        "release_context": True,
    }
    assert second["args"] == {"job_id": 3, "lock_deadline_seconds": 20.0, "residual_limit_bytes": 9}
