# SPDX-License-Identifier: GPL-2.0-or-later
"""The nodes as their agents saw them last, and which jobs and nodes that concerns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.port import NodeJob, NodeSample

Sample: TypeAlias = NodeSample | NodeError


class NodeCache:
    """Samples by node."""

    def __init__(self) -> None:
        self._samples: dict[str, Sample] = {}

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The last of each node."""
        return self._samples

    def take(self, samples: Mapping[str, Sample]) -> tuple[set[JobId], set[str]]:
        """Take over samples; returns the jobs whose control blocks differ, and the nodes that answer
        differently.

        What grows as jobs run (steps, memory, utilisation) is no difference.
        """
        jobs: set[JobId] = set()
        nodes: set[str] = set()
        for name, sample in samples.items():
            before = self._samples.get(name)
            known = _jobs(before)
            now = _jobs(sample)
            if type(before) is not type(sample) or (
                str(before) != str(sample) and isinstance(sample, NodeError)
            ):
                nodes.add(name)
                jobs.update(known, now)
            else:
                jobs.update(job_id for job_id, job in now.items() if _facts(known.get(job_id)) != _facts(job))
                jobs.update(known.keys() - now.keys())
            if _health(before) != _health(sample):
                nodes.add(name)
            self._samples[name] = sample
        return jobs, nodes

    def keep(self, names: Mapping[str, object]) -> None:
        """Forget nodes that Slurm does not have any more."""
        for name in self._samples.keys() - names.keys():
            del self._samples[name]


def _jobs(sample: Sample | None) -> Mapping[JobId, NodeJob]:
    return sample.jobs if isinstance(sample, NodeSample) else {}


def _facts(job: NodeJob | None) -> tuple[object, ...] | None:
    """What a job's phase, place and abilities follow from."""
    return None if job is None else (job.phase, job.gpus, job.movable, job.left_bytes > 0, bool(job.ranks))


def _health(sample: Sample | None) -> tuple[object, ...]:
    if not isinstance(sample, NodeSample):
        return ()
    return tuple(
        (gpu.index, gpu.model, gpu.healthy, frozenset(p.job_id for p in gpu.processes if p.memory_bytes > 0))
        for gpu in sample.gpus
    )
