# SPDX-License-Identifier: GPL-2.0-or-later
"""What samples show of jobs beyond where they are: memory, sizes, utilisation, speed."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import islice

from controller.model import (
    UNPROFILED,
    Configuration,
    Job,
    JobId,
    Node,
    Phase,
    Profile,
    Usage,
    gpu_type,
    value,
)
from controller.nodes.port import NodeSample, RankSample
from controller.observe.node_cache import Sample
from controller.observe.rates import Rates
from controller.observe.utilization import Utilization

EVERY_SECONDS = 5
"""So often a node is looked at where only figures grow."""
STEP_FRACTION = 0.05
"""A step time that differs by less from the known one is not taken over."""


@value
class Scene:
    """What samples are read against."""

    jobs: Mapping[JobId, Job]
    usage: Mapping[JobId, Usage]
    nodes: Mapping[str, Node]
    samples: Mapping[str, Sample]
    """The last of every node."""
    now: float


@value
class _Pace:
    """A job's step time, in the slice that began then, beside these jobs."""

    step_seconds: float
    since: float
    beside: frozenset[JobId]

    def goes_on_as(self, later: _Pace) -> bool:
        """Whether that is nothing new."""
        same = self.since == later.since and self.beside == later.beside
        return same and abs(later.step_seconds / self.step_seconds - 1) < STEP_FRACTION


class Measured:
    """Profiles by job and by model, and rates by model."""

    def __init__(self) -> None:
        self.utilization, self.rates = Utilization(), Rates()
        self.profiles: dict[JobId, Profile] = {}
        self.models: dict[str, Profile] = {}
        """What was measured of the jobs of each model; never changed, only replaced."""
        self.version = 0
        """Grows when something changes that is known of models."""
        self._paces: dict[JobId, _Pace] = {}
        self._looked_at: dict[str, float] = {}
        """When each node was looked at, the one longest ago first."""

    def step_seconds(self, job_id: JobId) -> float | None:
        """Median time of a mini-batch on the slowest rank, when that was seen last."""
        known = self._paces.get(job_id)
        return None if known is None else known.step_seconds

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self.profiles.pop(job_id, None)
        self._paces.pop(job_id, None)
        self.utilization.forget(job_id)

    def follow(self, answered: Set[str], differing: Set[str], scene: Scene) -> tuple[set[JobId], set[JobId]]:
        """Take over what nodes have just shown.

        Args:
            answered: nodes that were asked.
            differing: of these, those where not only figures grew. Others are looked at now and then.

        Returns:
            Jobs whose profile is another one, and those whose step time is.
        """
        profiles: set[JobId] = set()
        steps: set[JobId] = set()
        for name in self._due(answered, differing, scene.now):
            before = self._looked_at.pop(name, None)
            self._looked_at[name] = scene.now
            sample = scene.samples.get(name)
            if not isinstance(sample, NodeSample):
                continue
            for job_id, peak_bytes in sample.held_bytes().items():
                if job_id in scene.jobs and self._peak(job_id, peak_bytes):
                    profiles.add(job_id)
            for job_id in sample.jobs:
                job = scene.jobs.get(job_id)
                if job is None or name != _home(job, name):
                    continue  # a gang is looked at once, by the first of its nodes
                ranks = _ranks(job, sample, scene)
                fraction = self._watch(job, before, scene)
                if self._profile(job_id, ranks, fraction):
                    profiles.add(job_id)
                if self._pace(job, ranks, scene):
                    steps.add(job_id)
        for job_id in profiles:
            self._learn(scene.jobs[job_id].request.model, self.profiles[job_id])
        return profiles, steps

    def _due(self, answered: Set[str], differing: Set[str], now: float) -> list[str]:
        """Nodes to be looked at: those that differ, and of the others a part in each turn."""
        longest_ago = islice(self._looked_at.items(), len(self._looked_at) // EVERY_SECONDS + 1)
        due = [name for name, looked_at in longest_ago if now - looked_at >= EVERY_SECONDS]
        return [*differing, *(name for name in due if name in answered and name not in differing)]

    def _peak(self, job_id: JobId, peak_bytes: int) -> bool:
        known = self.profiles.get(job_id, UNPROFILED)
        if peak_bytes <= known.peak_memory_bytes:
            return False
        self.profiles[job_id] = replace(known, peak_memory_bytes=peak_bytes)
        return True

    def _watch(self, job: Job, before: float | None, scene: Scene) -> float | None:
        """The utilisation to be stated."""
        usage = scene.usage.get(job.id)
        if usage is not None and _runs(job, usage) and not job.placement.shares_with:
            fractions = _fractions(job, scene)
            if before is not None and usage.since is not None and usage.since <= before and fractions:
                return self.utilization.see(job.id, fractions, scene.now - before)
        return self.profiles.get(job.id, UNPROFILED).utilization_fraction

    def _profile(self, job_id: JobId, ranks: list[RankSample], utilization_fraction: float | None) -> bool:
        known = self.profiles.get(job_id, UNPROFILED)
        state_bytes = max((rank.state_bytes for rank in ranks), default=known.state_bytes)
        largest_bytes = max((rank.largest_tensor_bytes for rank in ranks), default=known.largest_tensor_bytes)
        figures = (state_bytes, largest_bytes, utilization_fraction)
        if figures == (known.state_bytes, known.largest_tensor_bytes, known.utilization_fraction):
            return False
        self.profiles[job_id] = Profile(
            peak_memory_bytes=known.peak_memory_bytes,
            state_bytes=state_bytes,
            largest_tensor_bytes=largest_bytes,
            utilization_fraction=utilization_fraction,
        )
        return True

    def _pace(self, job: Job, ranks: list[RankSample], scene: Scene) -> bool:
        """Note the step time, and the rate of the model in the configuration that the job runs in."""
        usage = scene.usage.get(job.id)
        step_seconds = max((rank.step_seconds for rank in ranks), default=0.0)
        if not step_seconds or usage is None or usage.since is None or not _runs(job, usage):
            return False
        known, pace = self._paces.get(job.id), _Pace(step_seconds, usage.since, job.placement.shares_with)
        if known is not None and known.goes_on_as(pace):
            return False
        self._paces[job.id] = pace
        if job.request.model:
            found = _configuration(job, scene)
            if self.rates.see(job.request.model, found, ranks, usage.since, scene.now):
                self.version += 1
        return True

    def _learn(self, model: str | None, profile: Profile) -> None:
        """What one job shows of all with its model: its sizes, and the most memory that any had."""
        if not model:
            return
        known = self.models.get(model, UNPROFILED)
        learned = Profile(
            peak_memory_bytes=max(known.peak_memory_bytes, profile.peak_memory_bytes),
            state_bytes=profile.state_bytes or known.state_bytes,
            largest_tensor_bytes=profile.largest_tensor_bytes or known.largest_tensor_bytes,
        )
        if learned != known:
            self.models = {**self.models, model: learned}
            self.version += 1


def _runs(job: Job, usage: Usage) -> bool:
    return job.phase is Phase.RUNNING and not job.switching and usage.since is not None


def _home(job: Job, name: str) -> str:
    nodes = {gpu.node for gpu in job.placement.allocation}
    return min(nodes) if len(nodes) > 1 else name


def _ranks(job: Job, sample: NodeSample, scene: Scene) -> list[RankSample]:
    names = {gpu.node for gpu in job.placement.allocation}
    if len(names) <= 1:
        return list(sample.jobs[job.id].ranks)
    seen = [scene.samples.get(name) for name in sorted(names)]
    blocks = [s.jobs.get(job.id) for s in seen if isinstance(s, NodeSample)]
    return [rank for block in blocks if block is not None for rank in block.ranks]


def _fractions(job: Job, scene: Scene) -> list[float]:
    """Of all its GPUs; empty where one is not known."""
    found: list[float] = []
    for gpu_id in job.placement.gpus:
        sample = scene.samples.get(gpu_id.node)
        for gpu in sample.gpus if isinstance(sample, NodeSample) else ():
            if gpu.index == gpu_id.ordinal:
                found.append(gpu.utilization_fraction)
    return found if len(found) == len(job.placement.gpus) else []


def _configuration(job: Job, scene: Scene) -> Configuration:
    gpus, others = job.placement.gpus, [scene.jobs.get(i) for i in job.placement.shares_with]
    models = sorted(other.request.model or "" for other in others if other is not None)
    return Configuration(
        gpu_type(gpus, scene.nodes), len(gpus), len({gpu.node for gpu in gpus}), tuple(models)
    )
