# SPDX-License-Identifier: GPL-2.0-or-later
"""Reservations in Slurm against promises: one that no job waits for is removed.

Level-triggered, as everything in the loop: reservations of a controller that was killed, of an operation that
failed and of a promise that was dropped are one case.
"""

import asyncio
import logging
import math
from collections.abc import Container

from controller.cluster.port import ClusterPort
from controller.errors import GandivaError
from controller.model import GpuSet, JobId, Phase, Snapshot
from controller.observe.memory import JobMemories

log = logging.getLogger(__name__)

_ON_ITS_WAY = frozenset({Phase.COMPLETING, Phase.QUEUED, Phase.UNKNOWN})


class Reservations:
    """What is reserved, as far as it is known: all at the start, and at each `look` again."""

    def __init__(self, cluster: ClusterPort) -> None:
        self._cluster = cluster
        self._known: dict[JobId, GpuSet] = {}
        self._look_at = -math.inf
        self._removing: dict[JobId, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    def look(self, now: float, every_seconds: float) -> None:
        """Begin to ask Slurm, where it is due."""
        if self._look_at > now + every_seconds:
            self._look_at = now  # the clock was set back
        if now >= self._look_at and self._looking is None:
            self._look_at = now + every_seconds
            self._looking = asyncio.create_task(self._look(), name="reservations")

    def made(self, job_id: JobId, gpus: GpuSet) -> None:
        """An operation reserves these GPUs, or tries to."""
        self._known[job_id] = gpus

    def remove_stray(self, snapshot: Snapshot, memory: JobMemories, busy: Container[JobId]) -> None:
        """Begin to remove those that are not for a job which waits for GPUs promised to it. `busy`: jobs with
        an operation under way."""
        for job_id, gpus in self._known.items():
            job = snapshot.jobs.get(job_id)
            waits = job is not None and job.phase in _ON_ITS_WAY and memory.of(job_id).promised == gpus
            if not waits and job_id not in busy and job_id not in self._removing:
                self._removing[job_id] = asyncio.create_task(self._remove(job_id), name=f"unreserve-{job_id}")

    def close(self) -> None:
        for task in (*self._removing.values(), *filter(None, [self._looking])):
            task.cancel()

    async def _look(self) -> None:
        try:
            # What was made meanwhile is newer.
            self._known = {**await self._cluster.reservations(), **self._known}
        except GandivaError as error:
            log.info("reservations are not known: %s", error)
            self._look_at = -math.inf
        finally:
            self._looking = None

    async def _remove(self, job_id: JobId) -> None:
        try:
            await self._cluster.unreserve(job_id)
            self._known.pop(job_id, None)
        except GandivaError as error:
            log.info("job %s: its reservation is not removed yet: %s", job_id, error)
        finally:
            del self._removing[job_id]
