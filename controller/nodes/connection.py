# SPDX-License-Identifier: GPL-2.0-or-later
"""One agent, spoken to from asyncio: connecting, requests by number, deadlines, starting again.

A transport brings bytes to an agent and back. Everything in it blocks and is called from threads of one
connection's own, so that a node that hangs stops no other.
"""

import asyncio
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from controller.errors import NodeError, NodeUnreachable
from controller.nodes import protocol
from controller.nodes.protocol import Answer, HelloResult, Request

log = logging.getLogger(__name__)


class TransportError(Exception):
    """The agent cannot be reached, or not any more; says why."""


class Channel(Protocol):
    """A running agent."""

    def read(self) -> bytes:
        """The next bytes; empty at the end. Raises TransportError."""

    def write(self, data: bytes) -> None:
        """All of it. Raises TransportError."""

    def close(self) -> None:
        """From any thread, any number of times; ends a read() that waits."""

    def farewell(self) -> str:
        """After the end: what is known about its reason, or nothing."""


class Transport(Protocol):
    """A way to start agents."""

    def connect(self, node: str, address: str) -> Channel:
        """Start the agent of a node. Raises TransportError within a bounded time."""


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    connect_seconds: float = 10.0
    """Until the agent has said hello."""
    grace_seconds: float = 5.0
    """For an answer, after the deadline that the agent was given."""
    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0


class Connection:
    """The agent of one node. All methods belong to the event loop; threads only bring and take bytes."""

    def __init__(
        self, transport: Transport, node: str, address: str, patience: Patience, hello: Mapping[str, Any]
    ) -> None:
        """`hello`: the arguments of that verb."""
        self.node = node
        self.address = address
        self.hello: HelloResult | None = None
        self._transport = transport
        self._patience = patience
        self._introduction = hello
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._link: _Link | None = None
        self._ready: asyncio.Future[None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_error = f"still connecting to {address}"
        self._heard_at = 0.0
        self._closed = False

    async def request(self, verb: str, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises NodeUnreachable, or NodeError with the agent's reason."""
        began = time.monotonic()
        try:
            await asyncio.wait_for(self._connected(), min(self._patience.connect_seconds, deadline_seconds))
        except asyncio.TimeoutError:
            # What was wrong last says more, and does not change with each try (each change is logged).
            raise NodeUnreachable(self.node, self._last_error) from None
        left = max(0.1, deadline_seconds - (time.monotonic() - began))
        answer = await self._ask(verb, args, left)
        if answer.error is not None:
            raise NodeError(self.node, answer.error.kind.value, answer.error.message)
        return answer.result or {}

    async def close(self) -> None:
        """Let the agent end; it finishes what it has begun."""
        self._closed = True
        self._drop("the connection was closed")

    async def _connected(self) -> None:
        if self._closed:
            raise NodeUnreachable(self.node, "the connection was closed")
        if self._ready is None:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                raise NodeUnreachable(self.node, self._last_error)
            self._ready = asyncio.ensure_future(self._connect())
            # No request may be waiting any more when it fails.
            self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Not shield(): where no request waits any more it logs the failure, with a traceback.
        ready = self._ready
        await asyncio.wait({ready})
        ready.result()

    async def _connect(self) -> None:
        link = _Link(self, self._transport, asyncio.get_running_loop())
        self._link = link
        seconds = self._patience.connect_seconds
        try:
            await asyncio.wait_for(asyncio.wrap_future(link.opened), seconds)
            answer = await self._ask("hello", self._introduction, seconds)
            if answer.error is not None:
                raise NodeUnreachable(self.node, f"agent refuses: {answer.error.message}")
            hello = HelloResult.model_validate(answer.result)
            if hello.version != protocol.VERSION or hello.node != self.node:
                raise NodeUnreachable(
                    self.node,
                    f"{self.address} answers as node {hello.node}, protocol version {hello.version};"
                    f" expected {self.node}, {protocol.VERSION}",
                )
        except (NodeUnreachable, ValidationError, asyncio.TimeoutError, TransportError) as error:
            reason = error.message if isinstance(error, NodeUnreachable) else str(error)
            if isinstance(error, asyncio.TimeoutError):
                reason = f"no agent at {self.address} after {seconds:.0f} s"
            if self._link is link:
                self._drop(reason)
            raise NodeUnreachable(self.node, reason) from None
        self._failures = 0
        self.hello = hello
        log.info("node %s: agent at %s is ready", self.node, self.address)

    def _drop(self, reason: str) -> None:
        """Give this connection up; every request under way fails with the reason."""
        link, self._link, self._ready = self._link, None, None
        self._last_error = reason
        longest = min(
            self._patience.first_backoff_seconds * 2**self._failures, self._patience.longest_backoff_seconds
        )
        self._failures = min(self._failures + 1, 16)
        # Spread out: a thousand nodes that come back together must not be called together.
        self._not_before = time.monotonic() + longest * random.uniform(0.5, 1.0)
        if link is not None:
            link.close()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(NodeUnreachable(self.node, reason))
                future.exception()  # the request may have given up

    async def _ask(self, verb: str, args: Mapping[str, Any], deadline_seconds: float) -> Answer:
        link = self._link
        if link is None:
            raise NodeUnreachable(self.node, self._last_error)
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        seconds = min(deadline_seconds, protocol.MAX_DEADLINE_SECONDS)
        request = Request(id=number, verb=verb, args=dict(args), deadline_seconds=seconds)
        asked_at = time.monotonic()
        link.send(protocol.encode(request))
        try:
            return await asyncio.wait_for(future, deadline_seconds + self._patience.grace_seconds)
        except asyncio.TimeoutError:
            reason = f"no answer to {verb} after {time.monotonic() - asked_at:.1f} s"
            if self._link is link and self._heard_at < asked_at:
                self._drop(reason)  # silent altogether: start over with a new agent
            raise NodeUnreachable(self.node, reason) from None
        finally:
            self._pending.pop(number, None)

    def on_line(self, link: "_Link", line: bytes) -> None:
        if link is not self._link:
            return
        self._heard_at = time.monotonic()
        try:
            answer = Answer.model_validate_json(line)
        except ValidationError:
            self._drop(f"the agent at {self.address} talks nonsense: {line[:80]!r}")
            return
        if answer.id is None:
            # It could not read a request of ours, or was started wrongly.
            self._drop(f"agent refuses: {answer.error.message if answer.error else 'no reason'}")
            return
        future = self._pending.get(answer.id)
        if future is not None and not future.done():
            future.set_result(answer)

    def on_end(self, link: "_Link", reason: str) -> None:
        if link is self._link:
            log.warning("node %s: %s; connecting again", self.node, reason)
            self._drop(reason)


class _Link:
    """One channel with its two threads: one connects and reads, one writes."""

    def __init__(self, owner: Connection, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._transport = transport
        self._loop = loop
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._closed = threading.Event()
        self.opened: Future[None] = Future()
        self.opened.set_running_or_notify_cancel()  # nothing can stop it: it is only not waited for
        threading.Thread(target=self._run, name=f"agent-{owner.node}", daemon=True).start()

    def send(self, line: bytes) -> None:
        self._outgoing.put(line)

    def close(self) -> None:
        """From the event loop; never blocks."""
        self._closed.set()
        self._outgoing.put(None)

    def _run(self) -> None:
        try:
            channel = self._channel = self._transport.connect(self._owner.node, self._owner.address)
        except Exception as error:  # also of a bug in a transport the caller must hear
            if not isinstance(error, TransportError):
                log.exception("node %s: cannot connect: a bug; trying again", self._owner.node)
                error = TransportError(f"{type(error).__name__}: {error}")
            self.opened.set_exception(error)
            return
        threading.Thread(target=self._write, name=f"agent-{self._owner.node}-out", daemon=True).start()
        self.opened.set_result(None)
        reason = self._read(channel)
        self._tell(lambda: self._owner.on_end(self, reason))
        self.close()
        channel.close()

    def _read(self, channel: Channel) -> str:
        buffer = bytearray()
        try:
            while data := channel.read():
                buffer += data
                while (end := buffer.find(b"\n")) >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    self._tell(lambda line=line: self._owner.on_line(self, line))
                if len(buffer) > 2 * protocol.MAX_LINE_BYTES:
                    return "the agent sends a line without end"
        except TransportError as error:
            return f"connection lost: {error}"
        farewell = channel.farewell()
        return f"the agent has ended{f' ({farewell})' if farewell else ''}"

    def _write(self) -> None:
        assert self._channel is not None
        while not self._closed.is_set() and (line := self._outgoing.get()) is not None:
            try:
                self._channel.write(line)
            except TransportError:
                break  # the reading side hears of it too, and says so
        self._channel.close()

    def _tell(self, call: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            self._closed.set()  # the event loop has been closed
