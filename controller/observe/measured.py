# SPDX-License-Identifier: GPL-2.0-or-later
"""What samples show of jobs beyond where they are: memory, sizes, utilisation, speed."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import Any

from controller.model import (
    UNPROFILED,
    Configuration,
    GpuId,
    Job,
    JobId,
    Node,
    Phase,
    Profile,
    Usage,
    key_of_job,
    rate_key,
)
from controller.nodes.port import NodeSample
from controller.observe.costs import MeasuredCosts
from controller.observe.node_cache import Sample
from controller.observe.rate_meter import RateMeter
from controller.observe.rates import MAX_MODELS, Rates
from controller.observe.utilization import Utilization

EVERY_SECONDS = 5
"""So often a node is looked at where only figures grow."""


class Measured:
    """Profiles by job and by model, rates by job and by model."""

    def __init__(
        self,
        jobs: Mapping[JobId, Job],
        usage: Mapping[JobId, Usage],
        nodes: Mapping[str, Node],
        samples: Mapping[str, Sample],
    ) -> None:
        """Of these, as they are at the time. `samples`: the last of every node."""
        self._jobs, self._usage, self._nodes, self._samples = jobs, usage, nodes, samples
        self.utilization, self.rates, self.rate_meter = Utilization(), Rates(), RateMeter()
        self.costs = MeasuredCosts()
        self.profiles: dict[JobId, Profile] = {}
        self.models: Mapping[str, Profile] = {}
        """What was measured of the jobs of each model; that which changed longest ago first."""
        self.version = 0
        """Grows when something changes that is known of models."""
        self._started_again: set[JobId] = set()
        """Jobs that ran before, started anew, and have not shown their rate since."""
        self._swept_at: dict[str, float] = {}
        """When all jobs of a node were looked at, the longest ago first."""

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self.profiles.pop(job_id, None)
        self._started_again.discard(job_id)
        self.utilization.forget(job_id)
        self.rate_meter.forget(job_id)

    def follow(
        self, changed: Set[JobId], nodes: Set[str], answered: Set[str], now: float
    ) -> tuple[set[JobId], set[JobId]]:
        """Take over what nodes have just shown.

        Args:
            changed: jobs that are not as they were, or whose control blocks are not.
            nodes: those whose GPUs are not as they were, or have more memory in use than before.
            answered: all that were asked. Where only figures grow, jobs are looked at now and then.

        Returns:
            Jobs whose profile is another one, and those whose step time is.
        """
        due = self._due(answered, now)
        jobs, profiles, steps = set(changed), set[JobId](), set[JobId]()
        jobs.update(self.rate_meter.due(answered, now), *(sample.jobs for sample in self._answers(due)))
        for sample in self._answers(nodes):
            for job_id, peak in sample.held_bytes().items():
                most = max(peak, self.profiles.get(job_id, UNPROFILED).peak_memory_bytes)
                if job_id in self._jobs and self._note(job_id, peak_memory_bytes=most):
                    profiles.add(job_id)
        for job_id in jobs:
            job, usage = self._jobs.get(job_id), self._usage.get(job_id)
            self._watch_starts(job_id, job, usage)
            if job is None:
                self.rates.drop(key_of_job(job_id))
            if job is None or usage is None or not job.placement.allocation:
                self.rate_meter.leave(job_id)
                continue
            profile, step = self._look(job, usage, now)
            if profile:
                profiles.add(job_id)
            if step:
                steps.add(job_id)
        self._take_rates(now)
        for job_id in profiles:
            self._learn(self._jobs[job_id].request.model, self.profiles[job_id])
        return profiles, steps

    def _answers(self, names: Iterable[str]) -> list[NodeSample]:
        return [each for name in names if isinstance(each := self._samples.get(name), NodeSample)]

    def _look(self, job: Job, usage: Usage, now: float) -> tuple[bool, bool]:
        """Whether its profile is another one, and its step time."""
        samples = self._answers({gpu.node for gpu in job.placement.allocation})
        ranks = [rank for sample in samples if job.id in sample.jobs for rank in sample.jobs[job.id].ranks]
        figures: dict[str, float] = {}
        if ranks:
            figures["state_bytes"] = max(rank.state_bytes for rank in ranks)
            figures["largest_tensor_bytes"] = max(rank.largest_tensor_bytes for rank in ranks)
        runs = job.phase is Phase.RUNNING and not job.switching and usage.since is not None
        alone_since = usage.since if runs and not job.placement.shares_with else None
        fractions = _fractions(job, samples) if alone_since is not None else []
        fraction = self.utilization.see(job.id, fractions, alone_since, now)
        if fraction is not None:
            figures["utilization_fraction"] = fraction
        profile = self._note(job.id, **figures)
        if not runs:
            self.rate_meter.leave(job.id)
            return profile, False
        return profile, self.rate_meter.see(job, usage, ranks, min((s.time for s in samples), default=now))

    def _due(self, answered: Set[str], now: float) -> list[str]:
        """Nodes all of whose jobs are looked at: in each cycle a part, those first of which that is longest
        ago."""
        self._swept_at |= dict.fromkeys(answered - self._swept_at.keys(), now)
        part = len(self._swept_at) // EVERY_SECONDS + 1
        candidates = list(answered if len(answered) <= part else islice(self._swept_at, part))
        due = [name for name in candidates if now - self._swept_at[name] >= EVERY_SECONDS]
        for name in due:
            del self._swept_at[name]
            self._swept_at[name] = now
        return due

    def _note(self, job_id: JobId, **figures: Any) -> bool:
        """Whether its profile becomes another one."""
        known = self.profiles.get(job_id, UNPROFILED)
        found = replace(known, **figures)
        if found != known:
            self.profiles[job_id] = found
        return found != known

    def _watch_starts(self, job_id: JobId, job: Job | None, usage: Usage | None) -> None:
        """A job that ran before and is queued starts from its checkpoint; a suspended one has not to load."""
        if job is None or job.phase in (Phase.SUSPENDED, Phase.YIELDED):
            self._started_again.discard(job_id)
        elif job.phase is Phase.QUEUED and usage is not None and usage.seconds > 0:
            self._started_again.add(job_id)

    def _take_rates(self, now: float) -> None:
        """What jobs have just shown of the configurations that they run in."""
        for stay, rate in self.rate_meter.news():
            job = self._jobs[stay.job_id]
            if job.id in self._started_again:
                self._started_again.discard(job.id)
                self.costs.see(job.request.model, "load", stay.idle_seconds())
            beside = [self._jobs[i] for i in job.placement.shares_with if i in self._jobs]
            where = Configuration.of(job.placement.gpus, self._nodes, beside)
            new = self.rates.see(rate_key(job), where, rate, (job.id, stay.since))
            self.version += bool(new and job.request.model)
        self.rates.estimate(now)

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


def _fractions(job: Job, answers: list[NodeSample]) -> list[float]:
    """Of all its GPUs; empty where one is not known."""
    seen = {GpuId(sample.node, gpu.index): gpu for sample in answers for gpu in sample.gpus}
    found = [seen[gpu_id].utilization_fraction for gpu_id in job.placement.gpus if gpu_id in seen]
    return found if len(found) == len(job.placement.gpus) else []
