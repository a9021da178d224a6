# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known at one instant, and what is wanted until the next."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any

from controller.model.cluster import Gpu, GpuId, JobId, Node
from controller.model.job import UNPROFILED, UNUSED, Job, Placement, Profile, StateAt, Usage
from controller.model.rates import UNMEASURED, Configuration, Costs, Rate
from controller.model.solving import Problem, Solution
from controller.model.value import empty, value

Note = tuple[Any, ...] | None
"""What a policy remembers of one job: a tuple of JSON scalars. None: nothing."""


@value
class Changes:
    """What differs from the snapshot before."""

    jobs: frozenset[JobId]
    """Jobs that came, went, or whose Job, Usage or Profile differs, and every job the last plan named."""
    nodes: frozenset[str]
    """Nodes that came, went, or whose GPUs, health or availability differ."""
    solutions: frozenset[str] = frozenset()
    """Names of problems that were solved since."""
    everything: bool = False
    """The first snapshot, or a resync: nothing kept from before counts."""


ALL_CHANGED = Changes(frozenset(), frozenset(), everything=True)


@value
class Share:
    """One account or user in Slurm's tree of associations."""

    name: str
    """Of an account; of a user in an account `account/user`."""
    parent: str | None
    """The account above; None: the root."""
    weight: float
    """Shares against those with the same parent."""
    usage_fraction: float = 0.0
    """What it has used lately of all that was used, as Slurm weighs it."""
    fair_share: float | None = None
    """Slurm's factor of a user, 0 to 1: the larger the less of the share was used. None: of an account."""


@value(kw_only=True)
class Snapshot:
    """All that is known at one instant: a policy's deterministic input, which can be saved and replayed.

    The mappings of the loop's own snapshots are views of what is known now: they hold until the next cycle.
    """

    time: float
    nodes: Mapping[str, Node]
    jobs: Mapping[JobId, Job]
    usage: Mapping[JobId, Usage] = field(default_factory=empty)
    """Also of jobs that went since the snapshot before."""
    profiles: Mapping[JobId, Profile] = field(default_factory=empty)
    rates: Mapping[str, Mapping[Configuration, Rate]] = field(default_factory=empty)
    """By model, or by job: see `rate_key`. What was measured, else what was declared or estimated."""
    job_rates: Mapping[JobId, Rate] = field(default_factory=empty)
    """Of each job in its present configuration, once enough mini-batches were seen there. A new rate alone
    does not make a job one of `changed`."""
    costs: Mapping[str, Costs] = field(default_factory=empty)
    """What operations take, by model; the empty name stands for jobs of all models."""
    models: Mapping[str, Profile] = field(default_factory=empty)
    """What was measured of the jobs of each model (`--gandiva-model`)."""
    shares: Mapping[str, Share] = field(default_factory=empty)
    """By name. Empty where the settings need none, and until they were read."""
    solutions: Mapping[str, Solution] = field(default_factory=empty)
    """The last one of every problem that plans stated since the controller started, by name."""
    changed: Changes = ALL_CHANGED

    def kept(self, before: Snapshot | None = None) -> Snapshot:
        """One that stays as it is, whatever the loop learns later. `before`: the snapshot before, kept: what
        no job changed is not copied again."""
        kept: dict[str, Any] = {}
        of_jobs = ("jobs", "usage", "profiles")
        anew = before is None or self.changed.everything or self.changed.jobs
        for name in ("nodes", "solutions", "rates", "job_rates", "costs", *of_jobs):
            kept[name] = dict(getattr(self, name)) if anew or name not in of_jobs else getattr(before, name)
        return replace(self, **kept)

    def usage_of(self, job_id: JobId) -> Usage:
        """What the job has had."""
        return self.usage.get(job_id, UNUSED)

    def profile_of(self, job_id: JobId) -> Profile:
        """What was measured of the job, else of others with its model."""
        known = self.profiles.get(job_id)
        if known is None and (job := self.jobs.get(job_id)) is not None and job.request.model:
            known = self.models.get(job.request.model)
        return UNPROFILED if known is None else known

    def costs_of(self, job: Job) -> Costs:
        """What was measured with jobs of its model, and where it was not with jobs of all models."""
        every, own = (self.costs.get(name, UNMEASURED) for name in ("", job.request.model or ""))
        measured = {each.name: getattr(own, each.name) for each in fields(own)}
        return replace(every, **{name: took for name, took in measured.items() if took is not None})

    def gpu(self, gpu: GpuId) -> Gpu | None:
        """The GPU, or None when its node is gone."""
        node = self.nodes.get(gpu.node)
        if node is None:
            return None
        # Nearly always they are in order.
        at = node.gpus[gpu.ordinal : gpu.ordinal + 1]
        return at[0] if at and at[0].id == gpu else next((g for g in node.gpus if g.id == gpu), None)


@value
class Target:
    """What one job should have."""

    placement: Placement
    """`gpus` empty: off its GPUs. `allocation` of a job that waits: promised to it."""
    keep: StateAt = StateAt.HOST
    """Where its state goes when it leaves its GPUs."""


@value
class Memory:
    """What a policy remembers: JSON, kept in the journal. In a Plan: what is different from now on."""

    common: Mapping[str, Any] = field(default_factory=empty)
    jobs: Mapping[JobId, Note] = field(default_factory=empty)


class Verdict(str, enum.Enum):
    """What became of a move."""

    PLANNED = "planned"
    """It is to be carried out, and is not compared with what was before."""
    TRIED = "tried"
    """Rates are being compared."""
    KEPT = "kept"
    UNDONE = "undone"


@value
class Moved:
    """What a move did to one job, for events and metrics."""

    move: str
    verdict: Verdict
    job_id: JobId
    gain: float | None = None
    """Throughput of all jobs of the move, as a multiple of that without it. None: it was not measured."""


@value
class Plan:
    """What should be different from what the snapshot shows. A job without a target stays as it is."""

    targets: Mapping[JobId, Target]
    reasons: Mapping[JobId, str] = field(default_factory=empty)
    """Why: one sentence for `gandiva explain`, for each job whose sentence changed. Plain text counts as
    `Reason.OTHER`."""
    memory: Memory = field(default_factory=Memory)
    wake_at: float = math.inf
    """Plan again at this time at the latest, even if nothing happens."""
    moved: tuple[Moved, ...] = ()
    problems: Mapping[str, Problem] = field(default_factory=empty)
    """What is to be solved, by name. A problem replaces the earlier one of its name; the same one again
    changes nothing."""
    refused: Mapping[str, str] = field(default_factory=empty)
    """Problems by name that could not be stated, or whose solution is of no use: why."""
