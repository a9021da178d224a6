# SPDX-License-Identifier: GPL-2.0-or-later
"""Separation: a job that does less beside others on its node than it did before continues on a node where
fewer GPUs are in use (SPEC 1.5, 1.7). Jobs on different GPUs share what else a node has: its buses, cores
and network.

There is no model of interference: the move is a trial. Where the job does not do more, its slowness was not
the others' doing, and such jobs are left where they are for a while.

Source: Gandiva (OSDI'18) 3.4, 3.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from controller.model import GpuSet, Job, JobId, Reason, Snapshot, Verdict, Why, by_node, gpu_type, rate_key
from controller.policies.moves.migrations import Migrations
from controller.policies.moves.trials import Trial, Trials
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts
from controller.policies.recalled import recalled
from controller.policies.settings import MigrationSettings, SeparateSettings, TrialSettings

NAME = "separate"


class Separate:
    """First trials are judged, then one job leaves each node where jobs are slow."""

    def __init__(self, own: SeparateSettings, trials: TrialSettings, migration: MigrationSettings) -> None:
        self._settings, self._trials, self._migration = own, trials, migration

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        record = recalled(draft.remembered.get(NAME), _Record, _Record())
        trials = Trials(snapshot, draft, NAME, self._trials)
        self._judge(snapshot, draft, trials, record)
        nodes = _Nodes(snapshot, draft)
        record.follow(snapshot, nodes.jobs, self._migration.cooldown_seconds)
        self._leave(snapshot, draft, nodes, trials, record)
        trials.save()
        draft.remember(NAME, record if record != _Record() else None)

    def _judge(self, snapshot: Snapshot, draft: Draft, trials: Trials, record: _Record) -> None:
        """What the moves brought. None is undone: it would only cost again."""

        def in_place(trial: Trial) -> bool:
            job = snapshot.jobs[trial.jobs[0]]
            name = _node_of(draft, job)
            return name not in ("", record.sources.get(job.id)) and not job.switching

        for trial in trials.ripe(in_place):
            (job_id,), rates, gain = trial.jobs, trials.rates(trial), trials.score_of(trial)
            trials.close(trial, gain)
            if not trials.is_gain(gain):
                record.best[trial.what] = rates.get(job_id, trial.before[0])
            draft.note(NAME, Verdict.KEPT, [job_id], gain if rates else None)
            left = record.sources.get(job_id, "its node")
            words = f"it does {gain:.2f} times what it did on {left}" if rates else "its rate is not known"
            draft.say(job_id, Why(Reason.KEEPS_GPUS, f"stays where it went to: {words}"))

    def _leave(
        self, snapshot: Snapshot, draft: Draft, nodes: _Nodes, trials: Trials, record: _Record
    ) -> None:
        migrations, ranked = Migrations(snapshot, draft, self._migration), list[tuple[float, Job]]()
        for job in filter(nodes.beside, nodes.jobs):
            rate, best = snapshot.job_rates.get(job.id), record.best.get(_what(snapshot, job), 0.0)
            if not job.may_migrate:
                continue
            # A new rate alone does not have a plan made.
            draft.wake(snapshot.time + self._settings.look_seconds)
            if rate is None or rate.samples_per_second >= best * (1 - self._settings.loss_fraction):
                continue
            speedup, score = best / rate.samples_per_second, trials.score(_what(snapshot, job))
            gain = (speedup - 1) * job.gpus * migrations.remaining_seconds(job)
            worth = score is None or trials.is_gain(score)
            if worth and migrations.pays(gain, [job]) and migrations.may_go(job):
                ranked.append((gain, job))
        for _, job in sorted(ranked, key=lambda entry: (-entry[0], entry[1].id)):
            source, rate = next(iter(by_node(job.placement.gpus))), snapshot.job_rates[job.id]
            name = nodes.quieter(job) if migrations.left > 0 and source not in record.left else None
            if name is None:
                continue
            what, others = _what(snapshot, job), ",".join(map(str, nodes.others(job)))
            part = rate.samples_per_second / record.best[what]
            words = f"beside job {others} on {source} it does {part:.2f} times what it did before"
            migrations.go(NAME, job.id, nodes.take(name, job), words, verdict=Verdict.TRIED)
            trials.begin(what, {job.id: rate.samples_per_second})
            record.left[source], record.sources[job.id] = snapshot.time, source
        migrations.save()


def _node_of(draft: Draft, job: Job) -> str:
    """The one node that the job runs on, with its GPUs to itself, and stays on. Empty: there is none."""
    names = by_node(job.placement.gpus)
    return next(iter(names)) if draft.stays(job) and not job.leaving and len(names) == 1 else ""


def _what(snapshot: Snapshot, job: Job) -> str:
    """What is compared: its model, or the job where it names none, on so many GPUs of a type."""
    gpus = job.placement.gpus
    return f"{rate_key(job)} on {len(gpus)} {gpu_type(gpus, snapshot.nodes)}"


@dataclass
class _Record:
    """What the move remembers."""

    best: dict[str, float] = field(default_factory=dict)
    """Samples/s, the most that was measured of jobs that are alike, on whatever node."""
    left: dict[str, float] = field(default_factory=dict)
    """When a job left a node: those that stayed are measured anew first."""
    sources: dict[JobId, str] = field(default_factory=dict)
    """Which node jobs left that are there still."""

    def follow(self, snapshot: Snapshot, jobs: list[Job], cooldown_seconds: float) -> None:
        """Take over what was measured, and forget what is over."""
        live, now = {rate_key(job) for job in snapshot.jobs.values()}, snapshot.time
        self.best = {what: rate for what, rate in self.best.items() if what.rsplit(" on ", 1)[0] in live}
        for job in jobs:
            if (rate := snapshot.job_rates.get(job.id)) is not None:
                what = _what(snapshot, job)
                self.best[what] = max(self.best.get(what, 0.0), rate.samples_per_second)
        # The wall clock may have been set back.
        self.left = {
            name: min(at, now) for name, at in self.left.items() if min(at, now) + cooldown_seconds > now
        }
        self.sources = {i: name for i, name in self.sources.items() if i in snapshot.jobs}


class _Nodes:
    """Who uses which, and what is free, as the draft has it."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._snapshot, self._draft, self._free = snapshot, draft, draft.free(snapshot)
        self._used = Counter(gpu.node for _, gpus in self._on() for gpu in gpus)
        """GPUs of jobs that run, or are to run there, by node."""
        self.jobs = [job for job in snapshot.jobs.values() if _node_of(draft, job)]
        """Those that run on one node each, with their GPUs to themselves."""

    def _on(self) -> Iterator[tuple[JobId, GpuSet]]:
        jobs, placements = self._snapshot.jobs, self._draft.placements
        return ((i, placement.gpus or jobs[i].promised) for i, placement in placements.items())

    def beside(self, job: Job) -> int:
        """GPUs that others use on its node."""
        (name,) = by_node(job.placement.gpus)
        return self._used[name] - job.gpus

    def others(self, job: Job) -> list[JobId]:
        """Those that run on its node too."""
        (name,) = by_node(job.placement.gpus)
        return sorted(i for i, gpus in self._on() if i != job.id and any(gpu.node == name for gpu in gpus))

    def quieter(self, job: Job) -> str | None:
        """The node with the fewest GPUs in use that takes the job: fewer than others use beside it."""
        nodes, beside = self._snapshot.nodes, self.beside(job)
        kind = gpu_type(job.placement.gpus, nodes)
        fits = [
            name
            for name in self._free.fitting(job.gpus)
            if self._used[name] < beside and nodes[name].model == kind and accepts(nodes[name], job, job.gpus)
        ]
        return min(fits, key=self._used.__getitem__, default=None)

    def take(self, name: str, job: Job) -> GpuSet:
        """Free GPUs there, for this job."""
        self._used[name] += job.gpus
        return frozenset(self._free.on(name)[: job.gpus])
