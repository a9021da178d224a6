# SPDX-License-Identifier: GPL-2.0-or-later
"""A cluster port that runs on another host: calls go to a `port_server` there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

from controller.cluster.port import ClusterView
from controller.model import GpuSet, JobId, Share
from tests.contract.passing_on import PassingOn
from tests.contract.port_server import decode, encode

_LINE_BYTES = 2**26


class RemotePort(PassingOn):
    """Implements `ClusterPort`. Every call raises ConnectionError once the server is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._looking = asyncio.Lock()
        """A view builds on the one before: the controller looks once at a time."""
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, *command: str) -> RemotePort:
        """Run a command that ends up being a port server."""
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES
            )
        )

    async def observe(self) -> ClusterView:
        async with self._looking:
            view: ClusterView = await self._ask("observe")
        return view

    async def shares(self) -> tuple[Share, ...]:
        found: tuple[Share, ...] = await self._ask("shares")
        return found

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        found: Mapping[JobId, GpuSet] = await self._ask("reservations")
        return found

    async def set_deadline(self, seconds: float) -> None:
        """Of the calls that come after it."""
        await self._ask("set_deadline", seconds)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), 10)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reader

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        return await self._ask(method, job_id, *arguments)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._reader.done():
            raise ConnectionError("the port server ended")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(encode((number, method, arguments)))
        return await answer

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                number, result, error = decode(line)
                answer = self._waiting.pop(number)
                if answer.done():
                    continue  # nobody waits for it any more
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the port server ended"))
