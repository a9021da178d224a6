# SPDX-License-Identifier: GPL-2.0-or-later
"""Reused job ids: a slurmctld that lost its last moments gives ids out again."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from controller.cluster.port import ClusterJob, JobState
from controller.errors import JournalError
from controller.journal import Journal
from controller.model import JobId

log = logging.getLogger(__name__)


class Identities:
    """Whose job each id was when it was seen last."""

    def __init__(self, journal: Journal, reused: Callable[[JobId, str], None]) -> None:
        """`reused`: called with the id that is another job's now, and whose it was in words."""
        self._journal, self._reused = journal, reused
        self._known: dict[JobId, tuple[str, float]] = {}

    def check(self, jobs: Sequence[ClusterJob]) -> set[JobId]:
        """Of these jobs, which are new or differ from what was seen last, those that have the id of an
        earlier, different job."""
        unknown = [job.id for job in jobs if job.id not in self._known]
        if unknown:
            with suppress(JournalError):  # reported when the journal is committed
                self._known.update(self._journal.submissions(unknown))
        found: set[JobId] = set()
        for job in jobs:
            known = self._known.setdefault(job.id, (job.user, job.submit_time))
            if not _same_job(known, job):
                self._known[job.id] = (job.user, job.submit_time)
                found.add(job.id)
                message = f"is another job than the one with this id before (of user {known[0]})"
                log.warning("job %s (user %s): %s", job.id, job.user, message)
                self._reused(job.id, message)
        return found

    def forget(self, job_ids: Iterable[JobId]) -> None:
        """Slurm does not know these jobs any more."""
        for job_id in job_ids:
            self._known.pop(job_id, None)


def _same_job(known: tuple[str, float], job: ClusterJob) -> bool:
    """Whether this is the job that was known by its user and its submit time. A requeue changes the submit
    time, and is counted. While the name service is away, a user's number stands for the name."""
    user, submit_time = known
    same_user = job.user == user or str(job.uid) in (job.user, user)
    requeued = job.restart_count > 0 or job.state is JobState.COMPLETING
    return same_user and (requeued or abs(job.submit_time - submit_time) < 1.0)
