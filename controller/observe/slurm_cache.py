# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm as it was seen last, and which jobs and nodes differ from the view before."""

from collections.abc import Set

from controller.cluster.port import ClusterJob, ClusterNode, ClusterView, JobState
from controller.model import JobId
from controller.model.index import Index
from controller.observe.identities import Identities


class SlurmCache:
    """Jobs and nodes by name.

    A job with the id of an earlier, different job is withheld once, so that the earlier one counts as gone;
    from the next view on it is a new job.
    """

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self.jobs: dict[JobId, ClusterJob] = {}
        """Gandiva jobs that Slurm knows."""
        self.nodes: dict[str, ClusterNode] = {}
        """GPU nodes."""
        self._on = Index[JobId, str]()
        self._withheld: dict[JobId, ClusterJob] = {}
        self._in = Index[JobId, str]()
        """Jobs with the partitions that they are in, or may start in."""
        self._seen: tuple[ClusterJob, ...] | None = None
        """All jobs, where the last view was complete: the same object in the next view if none changed."""

    @property
    def partitions(self) -> Set[str]:
        """Those that Gandiva jobs are in, or may start in."""
        return self._in.values

    def on(self, node: str) -> Set[JobId]:
        """Jobs that Slurm has on this node."""
        return self._on.having(node)

    def take(self, view: ClusterView) -> tuple[set[JobId], set[str]]:
        """Take over a view; returns the jobs and nodes that came, went or differ."""
        as_before = view.jobs is self._seen and not self._withheld
        jobs = () if as_before else view.jobs
        changed = {job.id: job for job in jobs if self.jobs.get(job.id) != job}
        nodes = {node.name for node in view.nodes if self.nodes.get(node.name) != node}
        gone: set[JobId] = {*view.gone}
        if view.complete:
            gone = set() if as_before else self.jobs.keys() - {job.id for job in view.jobs}
            for name in self.nodes.keys() - {node.name for node in view.nodes}:
                del self.nodes[name]
                nodes.add(name)
        else:
            changed = {**{i: job for i, job in self._withheld.items() if i not in gone}, **changed}
        self._seen = None  # whatever fails below: the next view is compared
        reused = self._identities.check(list(changed.values()))
        self._identities.forget(gone)
        self._withheld = {job_id: changed.pop(job_id) for job_id in reused}
        gone = (gone | reused) & self.jobs.keys()
        for node in view.nodes:
            self.nodes[node.name] = node
        for job_id in gone:
            self._put(job_id, None)
        for job_id, job in changed.items():
            self._put(job_id, job)
        self._seen = view.jobs if view.complete else None
        return changed.keys() | gone, nodes

    def _put(self, job_id: JobId, job: ClusterJob | None) -> None:
        self.jobs.pop(job_id, None)
        if job is not None:
            self.jobs[job_id] = job
        lives = job is not None and job.state is not JobState.ENDED
        self._on.put(job_id, frozenset() if job is None else frozenset(job.nodes))
        self._in.put(job_id, frozenset(job.partition.split(",")) if job and lives else frozenset())
