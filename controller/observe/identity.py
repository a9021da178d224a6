# SPDX-License-Identifier: GPL-2.0-or-later
"""Reused job ids: a slurmctld that lost its last moments gives ids out again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from controller.errors import JournalError
from controller.journal.port import JournalPort
from controller.model import JobId
from controller.slurm.port import ClusterView, JobState, SlurmJob

log = logging.getLogger(__name__)


class Identities:
    """Whose job each id was when it was seen last."""

    def __init__(self, journal: JournalPort, reused: Callable[[JobId, str], None]) -> None:
        """`reused`: told the id of another job, and in words whose it was before."""
        self._journal, self._reused = journal, reused
        self._known: dict[JobId, tuple[str, float]] = {}
        self._withheld: dict[JobId, SlurmJob] = {}

    def check(self, view: ClusterView) -> ClusterView:
        """The view without jobs that have the id of an earlier, different job.

        Such a job is withheld once, so that the earlier one counts as gone; from the next look on it is a new
        job.
        """
        jobs = {job.id: job for job in view.jobs}
        if not view.complete:
            jobs = {**{i: job for i, job in self._withheld.items() if i not in view.gone}, **jobs}
        self._withheld = {}
        unknown = [job_id for job_id in jobs if job_id not in self._known]
        if unknown:
            with suppress(JournalError):  # reported when the journal is committed
                self._known.update(self._journal.submissions(unknown))
        for job in list(jobs.values()):
            known = self._known.setdefault(job.id, (job.user, job.submit_time))
            if not _same_job(known, job):
                self._known[job.id] = (job.user, job.submit_time)
                self._withheld[job.id] = jobs.pop(job.id)
                message = f"is another job than the one with this id before (of user {known[0]})"
                log.warning("job %s (user %s): %s", job.id, job.user, message)
                self._reused(job.id, message)
        for job_id in view.gone - jobs.keys():
            self._known.pop(job_id, None)
        if view.complete and len(self._known) > 4 * len(jobs) + 1000:
            self._known = {i: known for i, known in self._known.items() if i in jobs}
        if len(jobs) == len(view.jobs) and not self._withheld:
            return view
        return replace(view, jobs=tuple(jobs.values()), gone=view.gone | self._withheld.keys())


def _same_job(known: tuple[str, float], job: SlurmJob) -> bool:
    """Whether this is the job that was known by its user and its submit time. A requeue changes the submit
    time, and is counted. While the name service is away, a user's number stands for the name."""
    user, submit_time = known
    same_user = job.user == user or str(job.uid) in (job.user, user)
    requeued = job.restart_count > 0 or job.state is JobState.COMPLETING
    return same_user and (requeued or abs(job.submit_time - submit_time) < 1.0)
