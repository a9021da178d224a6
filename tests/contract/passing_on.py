# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of a cluster port that is the same in all that stand before another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cluster.port import ClusterJob
from controller.model import GpuSet, JobId, Share


class PassingOn:
    """Makes one method, `_call`, of those methods of `ClusterPort` that are about one job."""

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        raise NotImplementedError

    async def shares(self) -> tuple[Share, ...]:
        raise NotImplementedError

    async def job(self, job_id: JobId) -> ClusterJob:
        job: ClusterJob = await self._call("job", job_id)
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

    async def end(self, job_id: JobId, reason: str) -> None:
        await self._call("end", job_id, reason)

    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        await self._call("reserve", job_id, gpus, seconds)

    async def unreserve(self, job_id: JobId) -> None:
        await self._call("unreserve", job_id)

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        raise NotImplementedError
