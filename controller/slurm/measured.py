# SPDX-License-Identifier: GPL-2.0-or-later
"""A transport that tells how long each call to Slurm took and how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import JobId
from controller.model.measures import Measures
from controller.slurm.records import JobRecord
from controller.slurm.transport import BindChange, Load, Transport, UnbindChange

log = logging.getLogger(__name__)

CALLS: Final = (
    "load", "job", "bind", "unbind", "release", "hold", "split", "suspend", "resume", "requeue_hold", "end",
)  # fmt: skip
OUTCOMES: Final = ("ok", "unknown_job", "refused", "unavailable", "cut_off", "error")
"""`cut_off`: ended at the deadline (or when the controller stopped), without an answer."""

T = TypeVar("T")


class MeasuredTransport:
    """Implements `Transport` over another one."""

    def __init__(self, transport: Transport, measures: Measures) -> None:
        self._transport = transport
        self._measures = measures

    async def load(self) -> Load:
        return await self._timed("load", self._transport.load())

    async def job(self, job_id: JobId) -> JobRecord:
        return await self._timed("job", self._transport.job(job_id), job_id)

    async def bind(self, job_id: JobId, change: BindChange) -> None:
        await self._timed("bind", self._transport.bind(job_id, change), job_id)

    async def unbind(self, job_id: JobId, change: UnbindChange) -> None:
        await self._timed("unbind", self._transport.unbind(job_id, change), job_id)

    async def release(self, job_id: JobId) -> None:
        await self._timed("release", self._transport.release(job_id), job_id)

    async def hold(self, job_id: JobId) -> None:
        await self._timed("hold", self._transport.hold(job_id), job_id)

    async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
        await self._timed("split", self._transport.split(array_id, tasks), array_id)

    async def suspend(self, job_id: JobId) -> None:
        await self._timed("suspend", self._transport.suspend(job_id), job_id)

    async def resume(self, job_id: JobId) -> None:
        await self._timed("resume", self._transport.resume(job_id), job_id)

    async def requeue_hold(self, job_id: JobId) -> None:
        await self._timed("requeue_hold", self._transport.requeue_hold(job_id), job_id)

    async def end(self, job_id: JobId, reason: str) -> None:
        await self._timed("end", self._transport.end(job_id, reason), job_id)

    async def close(self) -> None:
        await self._transport.close()

    async def _timed(self, call: str, work: Coroutine[Any, Any, T], job_id: JobId | None = None) -> T:
        began = time.perf_counter()
        outcome = "error"
        try:
            answer = await work
            outcome = "ok"
            return answer
        except UnknownJob:
            outcome = "unknown_job"
            raise
        except ClusterRefused:
            outcome = "refused"
            raise
        except ClusterUnavailable:
            outcome = "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cut_off"
            raise
        finally:
            seconds = time.perf_counter() - began
            self._measures.slurm_call(call, outcome, seconds)
            log.debug("%s: %s after %.1f ms", call, outcome, seconds * 1000, extra={"job": job_id})
