# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm as it was seen last, and which jobs and nodes differ from the view before.

Also reused job ids: a slurmctld that lost its last moments gives ids out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

from controller.errors import JournalError
from controller.journal.port import JournalPort
from controller.model import JobId
from controller.slurm.port import ClusterView, JobState, SlurmJob, SlurmNode

log = logging.getLogger(__name__)

_NO_JOBS: frozenset[JobId] = frozenset()


class Identities:
    """Whose job each id was when it was seen last."""

    def __init__(self, journal: JournalPort, reused: Callable[[JobId, str], None]) -> None:
        """`reused`: called with the id that is another job's now, and whose it was in words."""
        self._journal, self._reused = journal, reused
        self._known: dict[JobId, tuple[str, float]] = {}

    def check(self, jobs: Sequence[SlurmJob]) -> set[JobId]:
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


def _same_job(known: tuple[str, float], job: SlurmJob) -> bool:
    """Whether this is the job that was known by its user and its submit time. A requeue changes the submit
    time, and is counted. While the name service is away, a user's number stands for the name."""
    user, submit_time = known
    same_user = job.user == user or str(job.uid) in (job.user, user)
    requeued = job.restart_count > 0 or job.state is JobState.COMPLETING
    return same_user and (requeued or abs(job.submit_time - submit_time) < 1.0)


class SlurmCache:
    """Jobs and nodes by name.

    A job with the id of an earlier, different job is withheld once, so that the earlier one counts as gone;
    from the next view on it is a new job.
    """

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._jobs: dict[JobId, SlurmJob] = {}
        self._nodes: dict[str, SlurmNode] = {}
        self._on: dict[str, set[JobId]] = {}
        self._withheld: dict[JobId, SlurmJob] = {}

    @property
    def jobs(self) -> Mapping[JobId, SlurmJob]:
        """Gandiva jobs that Slurm knows."""
        return self._jobs

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        """GPU nodes."""
        return self._nodes

    def on(self, node: str) -> Set[JobId]:
        """Jobs that Slurm has on this node."""
        return self._on.get(node, _NO_JOBS)

    def take(self, view: ClusterView) -> tuple[set[JobId], set[str]]:
        """Take over a view; returns the jobs and nodes that came, went or differ."""
        changed = {job.id: job for job in view.jobs if self._jobs.get(job.id) != job}
        nodes = {node.name for node in view.nodes if self._nodes.get(node.name) != node}
        gone: set[JobId] = {*view.gone}
        if view.complete:
            gone = self._jobs.keys() - {job.id for job in view.jobs}
            for name in self._nodes.keys() - {node.name for node in view.nodes}:
                del self._nodes[name]
                nodes.add(name)
        else:
            changed = {**{i: job for i, job in self._withheld.items() if i not in gone}, **changed}
        reused = self._identities.check(list(changed.values()))
        self._identities.forget(gone)
        self._withheld = {job_id: changed.pop(job_id) for job_id in reused}
        gone = (gone | reused) & self._jobs.keys()
        self._nodes.update({node.name: node for node in view.nodes})
        for job_id in gone:
            self._put(job_id, None)
        for job_id, job in changed.items():
            self._put(job_id, job)
        return changed.keys() | gone, nodes

    def _put(self, job_id: JobId, job: SlurmJob | None) -> None:
        before = self._jobs.pop(job_id, None)
        for name in before.nodes if before is not None else ():
            self._on[name].discard(job_id)
        if job is not None:
            self._jobs[job_id] = job
            for name in job.nodes:
                self._on.setdefault(name, set()).add(job_id)
