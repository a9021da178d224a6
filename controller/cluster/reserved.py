# SPDX-License-Identifier: GPL-2.0-or-later
"""The reservations of a real Slurm, as far as they were seen. See `reserving` for what they are."""

import contextlib
import logging
from collections.abc import Mapping, Sequence

from controller.cluster.command import CommandTransport
from controller.cluster.reserving import FIRST_PRIORITY, Reservation
from controller.errors import ClusterRefused, UnknownJob
from controller.model import GpuSet, JobId

log = logging.getLogger(__name__)


class Reserved:
    """Makes, ends and uses them."""

    def __init__(self, transport: CommandTransport) -> None:
        self._transport = transport
        self._own_ids: dict[JobId, JobId] | None = None
        """Of jobs that GPUs are kept for, the controller's own job that keeps them. None: not known yet."""
        self._priorities: dict[JobId, int] = {}
        """Of jobs that were preferred, what Slurm had given them."""

    async def look(self) -> Mapping[JobId, GpuSet]:
        return {found.job_id: found.gpus for found in await self._look()}

    async def make(
        self, job_id: JobId, gpus: GpuSet, gres: Sequence[str], nodes: Sequence[str], seconds: float
    ) -> None:
        """One of these GPUs, in place of the job's one before."""
        if (await self.look()).get(job_id) == gpus:
            return
        await self.end(job_id)
        record = await self._transport.job(job_id)
        await self._transport.reserve(job_id, record.partition, gres, nodes, seconds)
        await self._look()

    async def end(self, job_id: JobId) -> None:
        """No GPUs are kept for this job any more."""
        for found in await self._look():
            if found.job_id == job_id:
                with contextlib.suppress(UnknownJob):  # it has ended by itself
                    await self._transport.unreserve(found.id)
        assert self._own_ids is not None
        self._own_ids.pop(job_id, None)
        if priority := self._priorities.pop(job_id, 0):
            await self._prefer(job_id, priority)

    async def release(self, job_id: JobId) -> None:
        """Release a job, to start where GPUs are kept for it."""
        if self._own_ids is None or job_id in self._own_ids:
            # A slurmctld that was killed may have forgotten it, and given its id to another job.
            await self._look()
        assert self._own_ids is not None
        own_id = self._own_ids.get(job_id)
        if own_id is not None:
            # Its core may be the last one that the job needs. The GPUs stay allocated to it.
            try:
                await self._transport.suspend(own_id)
            except (ClusterRefused, UnknownJob) as refused:
                log.info("job %s: reservation %s has ended: %s", job_id, own_id, refused)
        await self._transport.release(job_id)
        if own_id is not None:
            # Slurm may have planned to give the node's cores to an ordinary job that waits. It refuses to set
            # the priority of a job that is held.
            with contextlib.suppress(UnknownJob):
                self._priorities[job_id] = (await self._transport.job(job_id)).priority
            await self._prefer(job_id, FIRST_PRIORITY)

    async def _prefer(self, job_id: JobId, priority: int) -> None:
        try:
            await self._transport.prefer(job_id, priority)
        except (ClusterRefused, UnknownJob) as refused:
            log.info("job %s: no priority: %s", job_id, refused)

    async def _look(self) -> Sequence[Reservation]:
        found = await self._transport.reservations()
        self._own_ids = {each.job_id: each.id for each in found}
        return found
