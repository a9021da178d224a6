# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may have memory on which GPU. No job claims a GPU before its last holder is known to have left."""

import asyncio
from collections.abc import Iterable

from controller.errors import GandivaError
from controller.model import GpuId, GpuSet, JobId, Snapshot
from controller.model.index import Index


class ClaimFailed(GandivaError):
    """The GPUs will not come free now: their holder is not on its way off them."""


class Ledger:
    """Holders of GPUs: from the snapshot, and from the executor for jobs in transition."""

    def __init__(self) -> None:
        self._held = Index[JobId, GpuId]()
        self._leaving: set[JobId] = set()
        self._allocated = Index[JobId, GpuId]()
        self._changed: asyncio.Event | None = None
        """Set at the next change; there while a claim waits for one."""

    def sync(self, snapshot: Snapshot) -> None:
        """Take over what was observed of jobs that are not in transition."""
        everything = snapshot.changed.everything
        looked_at = {*self._held, *self._allocated, *snapshot.jobs} if everything else snapshot.changed.jobs
        for job_id in looked_at:
            job = snapshot.jobs.get(job_id)
            self._allocated.put(job_id, frozenset() if job is None else job.placement.allocation)
            if job is not None and job.switching:
                continue
            self._held.put(job_id, frozenset() if job is None else job.placement.gpus)
        self._notify()

    def holders(self, gpus: Iterable[GpuId]) -> set[JobId]:
        return self._held.having_any(gpus)

    def allocated(self, gpus: Iterable[GpuId]) -> set[JobId]:
        """Jobs to which Slurm has allocated any of these GPUs, on them or off them."""
        return self._allocated.having_any(gpus)

    def leaving(self, job_id: JobId) -> None:
        """This job has been asked to leave its GPUs: waiting for them makes sense."""
        self._leaving.add(job_id)

    def stays(self, job_id: JobId) -> None:
        """It did not leave after all."""
        self._leaving.discard(job_id)
        self._notify()

    def keep(self, job_id: JobId, gpus: GpuSet) -> None:
        """The job is known to have left all others of its GPUs."""
        self._leaving.discard(job_id)
        self._held.put(job_id, gpus)
        self._notify()

    def release(self, job_id: JobId) -> None:
        """The job is known to have left all its GPUs."""
        self.keep(job_id, frozenset())

    async def claim(self, job_id: JobId, gpus: GpuSet, beside: frozenset[JobId] = frozenset()) -> None:
        """Hold these GPUs, all at once, as soon as others have left them; `beside` may stay.

        Raises ClaimFailed when a holder is not leaving. Waits as long as all are: their own deadlines
        bound it.
        """
        while others := self.holders(gpus) - beside - {job_id}:
            if blocking := others - self._leaving:
                names = ", ".join(str(j) for j in sorted(blocking))
                raise ClaimFailed(f"{', '.join(map(str, sorted(gpus)))} still held by job {names}")
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()
        self._held.put(job_id, self._held.of(job_id) | gpus)

    def _notify(self) -> None:
        # Each event is for one change: all that wait now look again, and none misses one.
        if self._changed is not None:
            self._changed.set()
            self._changed = None
