# SPDX-License-Identifier: GPL-2.0-or-later
"""Suspended jobs that somebody requeues behind our back.

A suspended job has priority 0. Requeued in that state it keeps it, and Slurm calls it `JobHeldAdmin`: exactly
what a hold by an administrator looks like, which we respect for ever. So a job that was suspended when last
seen, and waits as held by an administrator a moment later, is held by us again (docs/slurm-facts.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from controller.actions import Withdraw
from controller.model import JobId, Snapshot
from controller.slurm.port import ClusterView, JobState

_SUSPENDED, _PENDING, _COMPLETING = JobState.SUSPENDED, JobState.PENDING, JobState.COMPLETING
ADMIN_HOLD = "JobHeldAdmin"
MOMENT_SECONDS = 10.0
"""How soon Slurm calls it held. A later hold is an administrator's."""


class Requeued:
    """Remembers which jobs are suspended."""

    def __init__(self) -> None:
        self._suspended: dict[JobId, float] = {}
        """And until when they count as such, once they wait."""
        self._held: set[JobId] = set()

    def recall(self, suspended: Iterable[JobId]) -> None:
        """These were suspended when a controller last saw them."""
        self._suspended.update(dict.fromkeys(suspended, math.inf))

    def actions(self, view: ClusterView, snapshot: Snapshot) -> list[Withdraw]:
        """What makes their holds ours again."""
        for job in view.jobs:
            state = job.state
            if state is _SUSPENDED:
                self._suspended[job.id] = math.inf
            elif state is _PENDING:
                until = self._suspended.get(job.id)
                if until is not None:
                    self._suspended[job.id] = min(until, snapshot.time + MOMENT_SECONDS)
                if job.reason != ADMIN_HOLD:
                    self._held.discard(job.id)
                elif until is not None:
                    self._held.add(job.id)
            elif state is not _COMPLETING:
                self._suspended.pop(job.id, None)
                self._held.discard(job.id)
        if self._suspended:
            self._suspended = {j: until for j, until in self._suspended.items() if until >= snapshot.time}
        if not self._held:
            return []
        self._held &= snapshot.jobs.keys()
        return [
            Withdraw(job_id, "restores the hold after requeue of a suspended job")
            for job_id in sorted(self._held - snapshot.busy)
        ]
