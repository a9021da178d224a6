# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm as it was seen last. Adapters may answer in full or with what changed; only this module compares."""

from __future__ import annotations

from collections.abc import Mapping

from controller.model import JobId
from controller.slurm.port import ClusterView, SlurmJob, SlurmNode


class SlurmCache:
    """Jobs and nodes by name."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, SlurmJob] = {}
        self._nodes: dict[str, SlurmNode] = {}

    @property
    def jobs(self) -> Mapping[JobId, SlurmJob]:
        """Gandiva jobs that Slurm knows."""
        return self._jobs

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        """GPU nodes."""
        return self._nodes

    def take(self, view: ClusterView) -> tuple[set[JobId], set[str]]:
        """Take over a view; returns the jobs and nodes that came, went or differ."""
        jobs = {job.id for job in view.jobs if self._jobs.get(job.id) != job}
        nodes = {node.name for node in view.nodes if self._nodes.get(node.name) != node}
        gone: set[JobId] = set(view.gone)
        if view.complete:
            gone = self._jobs.keys() - {job.id for job in view.jobs}
            nodes |= self._nodes.keys() - {node.name for node in view.nodes}
            self._nodes = {}
        self._jobs.update({job.id: job for job in view.jobs})
        self._nodes.update({node.name: node for node in view.nodes})
        for job_id in gone:
            self._jobs.pop(job_id, None)
        return jobs | gone, nodes
