# SPDX-License-Identifier: GPL-2.0-or-later
"""Suspended jobs that are requeued by others than the controller.

A suspended job has priority 0. Requeued in that state it keeps it, and Slurm calls it `JobHeldAdmin`: exactly
what a hold by an administrator looks like, which the controller respects for ever. So a job that was
suspended when last seen, and waits as held by an administrator a moment later, is held by the controller
again (docs/slurm-facts.md).
"""

import math
from collections.abc import Iterable

from controller.cluster.port import ClusterJob, JobState
from controller.cluster.states import ADMIN_HOLD
from controller.model import JobId
from controller.observe.observer import Observer

MOMENT_SECONDS = 10.0
"""How soon Slurm calls it held. A later hold is an administrator's."""


class HoldRestorer:
    """Remembers which jobs are suspended."""

    def __init__(self, suspended: Iterable[JobId]) -> None:
        """`suspended`: those that were when an earlier controller saw them last."""
        self._until = dict.fromkeys(suspended, math.inf)
        """Until when a hold is no administrator's, of jobs that are suspended or were just before."""
        self._held: set[JobId] = set()

    def look(self, observer: Observer, now: float) -> list[JobId]:
        """After a snapshot. Jobs that must be held by the controller again, in order."""
        for job_id in observer.looked_at:
            self._see(job_id, observer.slurm.jobs.get(job_id), now)
        jobs = [job for job_id in self._held if (job := observer.jobs.get(job_id)) is not None]
        return sorted(job.id for job in jobs if not job.switching)

    def _see(self, job_id: JobId, job: ClusterJob | None, now: float) -> None:
        match None if job is None else job.state:
            case JobState.SUSPENDED:
                self._until[job_id] = math.inf
                if job is not None and job.user_hold:
                    del self._until[job_id]  # an operator did hold it
            case JobState.COMPLETING:
                pass  # on its way from the one to the other
            case JobState.PENDING:
                if job_id in self._until:
                    self._until[job_id] = min(self._until[job_id], now + MOMENT_SECONDS)
                if job is None or job.reason != ADMIN_HOLD:
                    self._held.discard(job_id)
                elif self._until.get(job_id, -math.inf) >= now:
                    self._held.add(job_id)
            case _:
                self._until.pop(job_id, None)
                self._held.discard(job_id)
