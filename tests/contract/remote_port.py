# SPDX-License-Identifier: GPL-2.0-or-later
"""A cluster port that runs on another host: calls go to a `port_server` there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from controller.cluster.port import ClusterView, SlurmJob
from controller.model import GpuSet, JobId
from tests.contract.port_server import decode, encode

_LINE_BYTES = 2**26


class RemotePort:
    """Implements `ClusterPort`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
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
        view: ClusterView = await self._call("observe")
        return view

    async def job(self, job_id: JobId) -> SlurmJob:
        job: SlurmJob = await self._call("job", job_id)
        return job

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        await self._call("bind", job_id, binding)

    async def unbind(self, job_id: JobId) -> None:
        await self._call("unbind", job_id)

    async def release(self, job_id: JobId) -> None:
        await self._call("release", job_id)

    async def hold(self, job_id: JobId) -> None:
        await self._call("hold", job_id)

    async def suspend(self, job_id: JobId) -> None:
        await self._call("suspend", job_id)

    async def resume(self, job_id: JobId) -> None:
        await self._call("resume", job_id)

    async def requeue(self, job_id: JobId) -> None:
        await self._call("requeue", job_id)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), 10)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reader

    async def _call(self, method: str, *arguments: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(encode((number, method, arguments)))
        return await answer

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            number, result, error = decode(line)
            answer = self._waiting.pop(number)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
        for answer in self._waiting.values():
            answer.set_exception(ConnectionError("the port server ended"))
