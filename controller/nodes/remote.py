# SPDX-License-Identifier: GPL-2.0-or-later
"""The node port over any transport: what `ssh` and the tests' local agents have in common."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError
from typing_extensions import Unpack

from controller.errors import NodeError, NodeUnreachable
from controller.model import JobId
from controller.model.measures import Measures
from controller.nodes import protocol
from controller.nodes.connection import Connection, Patience, Transport
from controller.nodes.port import Leave, NodeSample, Place
from controller.nodes.protocol import Living, Offload, Pause, Result, Saved

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 0.1
"""An agent, or a connection, that gives up at the deadline says why; that is waited for."""
FORGET_SECONDS = 30.0
PAUSE_SECONDS = 5.0
"""What a pause may take besides waiting for the ranks."""
LOCK_SHARE = 0.5
"""How much of a checkpoint's deadline may be spent on waiting for running kernels."""


class Guard(Protocol):
    """Who may say no before something is asked of a node, and hears what became of its lease."""

    def before(self, verb: str) -> float:
        """A time, for `answered`. Raises GandivaError: the request is not sent."""

    def answered(self, asked_at: float, error: NodeError | None) -> None:
        """The agent has answered."""


class RemoteNodes:
    """A NodePort: agents elsewhere, one connection per node, all nodes independent of each other."""

    def __init__(
        self,
        transport: Transport,
        patience: Patience | None = None,
        measures: Measures | None = None,
        introduction: protocol.HelloArgs | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`introduction`: who asks; without it the agents take this for a tool that looks around."""
        self._guard = guard
        self._transport = transport
        self._patience = Patience() if patience is None else patience
        self._measures = measures
        self._introduction = {} if introduction is None else introduction.model_dump()
        self._connections: dict[str, Connection] = {}
        self._late: dict[str, asyncio.Task[NodeSample | NodeError]] = {}
        """Looks that nobody waits for any more."""
        self._silent: dict[str, NodeUnreachable] = {}
        """Nodes that did not answer the last look in time. Until they answer one, none waits for them."""

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        # Nothing is connected before it is needed.
        for node, connection in list(self._connections.items()):
            if addresses.get(node) != connection.address:
                await connection.close()
                del self._connections[node]
                self._late.pop(node, None)
                self._silent.pop(node, None)
        for node, address in addresses.items():
            if not protocol.NODE_NAME.fullmatch(node):
                raise ValueError(f"{node!r} is no node name: need {protocol.NODE_NAME.pattern}")
            if node not in self._connections:
                self._connections[node] = Connection(
                    self._transport, node, address, self._patience, self._introduction
                )

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        self._late = {node: task for node, task in self._late.items() if not task.done()}
        asked = {
            node: asyncio.create_task(self._look(node, deadline_seconds))
            for node in self._connections
            if node not in self._late
        }
        prompt = [task for node, task in asked.items() if node not in self._silent]
        try:
            await asyncio.sleep(0)
            if prompt:
                await asyncio.wait(prompt, timeout=deadline_seconds + LAST_WORDS_SECONDS)
        except asyncio.CancelledError:
            for task in asked.values():
                task.cancel()
            raise
        found: dict[str, NodeSample | NodeError] = {}
        for node in self._connections:
            look = asked.get(node)
            if look is not None and look.done():
                found[node] = look.result()
                continue
            if look is not None:
                self._late[node] = look
            reason = f"no answer to observe within {deadline_seconds:g} s"
            found[node] = self._silent.setdefault(node, NodeUnreachable(node, reason))
        return found

    async def _look(self, node: str, deadline_seconds: float) -> NodeSample | NodeError:
        """An answer that comes late says that the node answers again, and nothing else: what operations did
        meanwhile is not in it."""
        began = time.monotonic()
        try:
            found = await self._ask(node, "observe", deadline_seconds, protocol.ObserveResult)
        except NodeError as error:
            late = node in self._silent or time.monotonic() - began >= deadline_seconds
            if isinstance(error, NodeUnreachable) and late:
                self._silent[node] = error
            return error
        self._silent.pop(node, None)
        jobs = {job.job_id: job for job in found.jobs}
        return NodeSample(node, found.time, found.gpus, jobs, found.unconfined)

    async def prepare(self, node: str, job_id: JobId, *, uid: int, **place: Unpack[Place]) -> None:
        await self._put(node, "prepare", job_id, place, uid=uid)

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        args = {"job_id": job_id, "floor_step": floor_step, "wait_seconds": wait_seconds, "sole": sole}
        return await self._ask(node, "pause", wait_seconds + PAUSE_SECONDS, Pause, **args)

    async def offload(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        return await self._ask(node, "offload", leave["deadline_seconds"], Offload, job_id=job_id, **leave)

    async def checkpoint(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        seconds, limit_bytes = leave["deadline_seconds"], leave["residual_limit_bytes"]
        args = {"lock_deadline_seconds": seconds * LOCK_SHARE, "residual_limit_bytes": limit_bytes}
        return await self._ask(node, "checkpoint", seconds, Offload, job_id=job_id, **args)

    async def save(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
        args = {"job_id": job_id, "deadline_seconds": deadline_seconds}
        return await self._ask(node, "save", deadline_seconds, Saved, **args)

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        await self._ask(node, "stop", deadline_seconds, dict, job_id=job_id, wait_seconds=deadline_seconds)

    async def open(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        await self._put(node, "open", job_id, place, deadline_seconds=place["deadline_seconds"])

    async def resume(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        await self._put(node, "resume", job_id, place, deadline_seconds=place["deadline_seconds"])

    async def _put(self, node: str, verb: str, job_id: JobId, place: Place, **more: float) -> None:
        beside = sorted(place.get("beside", ()))
        where = {"gpus": list(place["gpus"]), "binding": list(place["binding"]), "beside": beside}
        await self._ask(node, verb, place["deadline_seconds"], dict, job_id=job_id, **where, **more)

    async def forget(self, node: str, job_id: JobId) -> None:
        await self._ask(node, "forget", FORGET_SECONDS, dict, job_id=job_id)

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Living:
        return await self._ask(node, "living", deadline_seconds, Living, job_id=job_id)

    async def mapped(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Sequence[str]:
        answer = await self._ask(node, "mapped", deadline_seconds, dict, job_id=job_id)
        return [path for path in answer.get("files", ()) if isinstance(path, str)]

    async def warm(self, node: str, *, uid: int, files: Sequence[str], deadline_seconds: float) -> None:
        await self._ask(node, "warm", deadline_seconds, dict, uid=uid, files=list(files))

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        self._connections = {}

    async def hello(self, node: str, deadline_seconds: float) -> protocol.HelloResult:
        """What the node's agent says about itself (`gandiva check`). Raises NodeError."""
        return await self._ask(node, "hello", deadline_seconds, protocol.HelloResult)

    async def leaders(
        self, soon_seconds: float, deadline_seconds: float
    ) -> Mapping[str, protocol.LeaderInfo | None]:
        """Which controller has the lease of each node now (None: none has), of those nodes that answer.

        Waits for all of them, but after `soon_seconds` no longer than until one has answered.
        """
        asked = {asyncio.create_task(self.hello(node, deadline_seconds)): node for node in self._connections}
        found: dict[str, protocol.LeaderInfo | None] = {}
        pending, until = set(asked), asyncio.ALL_COMPLETED
        soon: float | None = soon_seconds
        while pending and not found:
            done, pending = await asyncio.wait(pending, timeout=soon, return_when=until)
            for task in done:
                with contextlib.suppress(NodeError):
                    found[asked[task]] = task.result().leader
            soon, until = None, asyncio.FIRST_COMPLETED
        for task in pending:
            task.cancel()
        return found

    async def lead(self, deadline_seconds: float) -> Mapping[str, NodeError | None]:
        """Renew the lease of every connected node; None: it is ours."""

        async def one(node: str) -> NodeError | None:
            try:
                await self._ask(node, "lead", deadline_seconds, dict)
            except NodeError as error:
                return error
            return None

        nodes = [node for node, connection in self._connections.items() if connection.hello is not None]
        return dict(zip(nodes, await asyncio.gather(*(one(node) for node in nodes)), strict=True))

    def _tell_guard(self, verb: str, asked_at: float, error: NodeError | None) -> None:
        if self._guard is not None and verb != "hello":
            self._guard.answered(asked_at, error)

    async def _ask(
        self, node: str, verb: str, deadline_seconds: float, kind: type[Result], /, **args: Any
    ) -> Result:
        connection = self._connections.get(node)
        if connection is None:
            raise NodeUnreachable(node, "not one of the nodes given to set_nodes()")
        asked_at = self._guard.before(verb) if self._guard is not None else 0.0
        began, outcome = time.perf_counter(), "cut_off"
        try:
            answer = protocol.read_result(kind, await connection.request(verb, args, deadline_seconds))
            outcome = "ok"
            self._tell_guard(verb, asked_at, None)
            return answer
        except ValidationError as error:
            outcome = "internal"
            message = f"the agent's answer to {verb} is no {kind.__name__}: {error}"
            raise NodeError(node, outcome, message) from None
        except NodeError as error:
            outcome = error.kind
            self._tell_guard(verb, asked_at, error)
            raise
        finally:
            seconds = time.perf_counter() - began
            if self._measures is not None:
                self._measures.agent_call(verb, outcome, seconds)
            if log.isEnabledFor(logging.DEBUG):
                job_id = args.get("job_id")
                what = f"{verb} of job {job_id}" if job_id is not None else verb
                text = "node %s: %s: %s after %.1f ms"
                log.debug(text, node, what, outcome, seconds * 1000, extra={"job": job_id, "node": node})
