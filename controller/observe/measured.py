# SPDX-License-Identifier: GPL-2.0-or-later
"""What samples show of jobs beyond where they are: memory, sizes, utilisation, speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

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


class Measured:
    """Profiles by job and by model, and rates by model."""

    def __init__(self) -> None:
        self.utilization, self.rates = Utilization(), Rates()
        self.profiles: dict[JobId, Profile] = {}
        self.models: dict[str, Profile] = {}
        """What was measured of the jobs of each model; never changed, only replaced."""
        self.version = 0
        """Grows when something changes that is known of models."""
        self._step_seconds: dict[JobId, float] = {}
        self._asked: dict[str, float] = {}
        """When each node was asked last."""

    def step_seconds(self, job_id: JobId) -> float | None:
        """Median time of a mini-batch on the slowest rank, when that was seen last."""
        return self._step_seconds.get(job_id)

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self.profiles.pop(job_id, None)
        self._step_seconds.pop(job_id, None)
        self.utilization.forget(job_id)

    def follow(self, answered: Iterable[str], scene: Scene) -> tuple[set[JobId], set[JobId]]:
        """Take over what these nodes have just shown. Returns the jobs whose profile is another one, and
        those whose step time is."""
        profiles: set[JobId] = set()
        steps: set[JobId] = set()
        for name in answered:
            sample = scene.samples.get(name)
            if not isinstance(sample, NodeSample):
                continue
            before, self._asked[name] = self._asked.get(name), scene.now
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
        if job.request.model:
            found = _configuration(job, scene)
            if self.rates.see(job.request.model, found, ranks, usage.since, scene.now):
                self.version += 1
        known = self._step_seconds.get(job.id)
        if known is not None and abs(step_seconds / known - 1) < STEP_FRACTION:
            return False
        self._step_seconds[job.id] = step_seconds
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
