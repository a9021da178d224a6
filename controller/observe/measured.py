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
    key_of_job,
    rate_key,
    value,
)
from controller.nodes.port import NodeSample
from controller.nodes.protocol import RankSample
from controller.observe.costs import MeasuredCosts
from controller.observe.node_cache import Sample
from controller.observe.paces import STEP_FRACTION, Paces
from controller.observe.rates import MAX_MODELS, Rates
from controller.observe.utilization import Utilization

EVERY_SECONDS = 5
"""So often a node is looked at where only figures grow."""


@value
class Observation:
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
    """Profiles by job and by model, rates by job and by model."""

    def __init__(self) -> None:
        self.utilization, self.rates, self.paces = Utilization(), Rates(), Paces()
        self.costs = MeasuredCosts()
        self.profiles: dict[JobId, Profile] = {}
        self.models: Mapping[str, Profile] = {}
        """What was measured of the jobs of each model; that which changed longest ago first."""
        self.version = 0
        """Grows when something changes that is known of models."""
        self._paces: dict[JobId, _Pace] = {}
        self._watched_at: dict[JobId, float] = {}
        self._started_again: set[JobId] = set()
        """Jobs that ran before, started anew, and have not shown their rate since."""
        self._swept_at: dict[str, float] = {}
        """When all jobs of a node were looked at, the longest ago first."""

    def step_seconds(self, job_id: JobId) -> float | None:
        """Median time of a mini-batch on the slowest rank, when that was seen last."""
        known = self._paces.get(job_id)
        return None if known is None else known.step_seconds

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self.profiles.pop(job_id, None)
        self._paces.pop(job_id, None)
        self._watched_at.pop(job_id, None)
        self._started_again.discard(job_id)
        self.utilization.forget(job_id)
        self.paces.leave(job_id)

    def follow(
        self, changed: Set[JobId], nodes: Set[str], answered: Set[str], observation: Observation
    ) -> tuple[set[JobId], set[JobId]]:
        """Take over what nodes have just shown.

        Args:
            changed: jobs that are not as they were, or whose control blocks are not.
            nodes: those whose GPUs are not as they were, or have more memory in use than before.
            answered: all that were asked. Where only figures grow, jobs are looked at now and then.

        Returns:
            Jobs whose profile is another one, and those whose step time is.
        """
        due = self._due(answered, observation.now)
        jobs, profiles, steps = set(changed), set[JobId](), set[JobId]()
        jobs.update(self.paces.due(answered, observation.now))
        for name in nodes:
            if isinstance(sample := observation.samples.get(name), NodeSample):
                peaks = sample.held_bytes().items()
                profiles |= {i for i, peak in peaks if i in observation.jobs and self._peak(i, peak)}
        for name in due:
            if isinstance(sample := observation.samples.get(name), NodeSample):
                jobs.update(sample.jobs)
        for job_id in jobs:
            job, usage = observation.jobs.get(job_id), observation.usage.get(job_id)
            self._watch_starts(job_id, job, usage)
            if job is None or usage is None or not job.placement.allocation:
                self.paces.leave(job_id)
                if job is None:
                    self.rates.drop(key_of_job(job_id))
                continue
            ranks = _ranks(job, observation)
            if self._profile(job_id, ranks, self._watch(job, usage, observation)):
                profiles.add(job_id)
            if self._pace(job, usage, ranks, observation):
                steps.add(job_id)
            if _runs(job, usage):
                self.paces.see(job, usage, ranks, _sampled_at(job, observation))
            else:
                self.paces.leave(job_id)
        self._take_rates(observation)
        for job_id in profiles:
            self._learn(observation.jobs[job_id].request.model, self.profiles[job_id])
        return profiles, steps

    def _due(self, answered: Set[str], now: float) -> list[str]:
        """Nodes all of whose jobs are looked at: in each turn a part, those first of which that is longest
        ago."""
        self._swept_at |= dict.fromkeys(answered - self._swept_at.keys(), now)
        part = len(self._swept_at) // EVERY_SECONDS + 1
        candidates = list(answered if len(answered) <= part else islice(self._swept_at, part))
        due = [name for name in candidates if now - self._swept_at[name] >= EVERY_SECONDS]
        for name in due:
            del self._swept_at[name]
            self._swept_at[name] = now
        return due

    def _peak(self, job_id: JobId, peak_bytes: int) -> bool:
        known = self.profiles.get(job_id, UNPROFILED)
        if peak_bytes <= known.peak_memory_bytes:
            return False
        self.profiles[job_id] = replace(known, peak_memory_bytes=peak_bytes)
        return True

    def _watch(self, job: Job, usage: Usage, observation: Observation) -> float | None:
        """The utilisation to be stated."""
        before = self._watched_at.get(job.id)
        self._watched_at[job.id] = observation.now
        alone = _runs(job, usage) and not job.placement.shares_with
        if (
            alone
            and before is not None
            and usage.since is not None
            and usage.since <= before
            and (fractions := _fractions(job, observation))
        ):
            return self.utilization.see(job.id, fractions, observation.now - before)
        return self.profiles.get(job.id, UNPROFILED).utilization_fraction

    def _profile(self, job_id: JobId, ranks: list[RankSample], utilization_fraction: float | None) -> bool:
        known = self.profiles.get(job_id, UNPROFILED)
        state_bytes = max((rank.state_bytes for rank in ranks), default=known.state_bytes)
        largest_bytes = max((rank.largest_tensor_bytes for rank in ranks), default=known.largest_tensor_bytes)
        figures = (state_bytes, largest_bytes, utilization_fraction)
        if figures == (known.state_bytes, known.largest_tensor_bytes, known.utilization_fraction):
            return False
        self.profiles[job_id] = replace(
            known,
            state_bytes=state_bytes,
            largest_tensor_bytes=largest_bytes,
            utilization_fraction=utilization_fraction,
        )
        return True

    def _pace(self, job: Job, usage: Usage, ranks: list[RankSample], observation: Observation) -> bool:
        """Note the step time."""
        step_seconds = max((rank.step_seconds for rank in ranks), default=0.0)
        if not step_seconds or usage.since is None or not _runs(job, usage):
            return False
        known, pace = self._paces.get(job.id), _Pace(step_seconds, usage.since, job.placement.shares_with)
        if known is not None and known.goes_on_as(pace):
            return False
        self._paces[job.id] = pace
        return True

    def _watch_starts(self, job_id: JobId, job: Job | None, usage: Usage | None) -> None:
        """A job that ran before and is queued starts from its checkpoint; a suspended one has not to load."""
        if job is None or job.phase in (Phase.SUSPENDED, Phase.YIELDED):
            self._started_again.discard(job_id)
        elif job.phase is Phase.QUEUED and usage is not None and usage.seconds > 0:
            self._started_again.add(job_id)

    def _take_rates(self, observation: Observation) -> None:
        """What jobs have just shown of the configurations that they run in."""
        for job_id, rate in self.paces.news():
            job = observation.jobs[job_id]
            if job_id in self._started_again:
                self._started_again.discard(job_id)
                self.costs.see(job.request.model, "load", self.paces.idle_seconds(job_id))
            since = observation.usage[job_id].since
            stay = (job_id, observation.now if since is None else since)
            beside = [observation.jobs[i] for i in job.placement.shares_with if i in observation.jobs]
            where = Configuration.of(job.placement.gpus, observation.nodes, beside)
            new = self.rates.see(rate_key(job), where, rate, stay)
            self.version += bool(new and job.request.model)
        self.rates.estimate(observation.now)

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
            others = [(name, its) for name, its in self.models.items() if name != model]
            self.models = {**dict(others[1 - MAX_MODELS :]), model: learned}
            self.version += 1


def _runs(job: Job, usage: Usage) -> bool:
    return job.phase is Phase.RUNNING and not job.switching and usage.since is not None


def _samples(job: Job, observation: Observation) -> list[NodeSample]:
    """Of all nodes of the job that answer."""
    samples = (observation.samples.get(name) for name in {gpu.node for gpu in job.placement.allocation})
    return [sample for sample in samples if isinstance(sample, NodeSample)]


def _ranks(job: Job, observation: Observation) -> list[RankSample]:
    samples = _samples(job, observation)
    return [rank for sample in samples if job.id in sample.jobs for rank in sample.jobs[job.id].ranks]


def _sampled_at(job: Job, observation: Observation) -> float:
    """When the oldest of the samples of the job's nodes was taken."""
    return min((sample.time for sample in _samples(job, observation)), default=observation.now)


def _fractions(job: Job, observation: Observation) -> list[float]:
    """Of all its GPUs; empty where one is not known."""
    found: list[float] = []
    for gpu_id in job.placement.gpus:
        sample = observation.samples.get(gpu_id.node)
        for gpu in sample.gpus if isinstance(sample, NodeSample) else ():
            if gpu.index == gpu_id.ordinal:
                found.append(gpu.utilization_fraction)
    return found if len(found) == len(job.placement.gpus) else []
