# SPDX-License-Identifier: GPL-2.0-or-later
"""Growing and shrinking: a job that allows it (`--gandiva-gpus`) takes GPUs of its node that no job needs,
and gives them back when one may need them (SPEC 1.6).

Sizes are what the job asked for, doubled: with each it starts again from a checkpoint, or goes on in place.
A growth is a trial where the rate before is known: one that gains too little is undone.

Source: Gandiva (OSDI'18) 4.5. The paper gives no formula; which job grows first is this project's rule.
"""

import math
from collections.abc import Iterable, Mapping

from controller.model import (
    Configuration,
    GpuId,
    Job,
    JobId,
    Placement,
    Provenance,
    Snapshot,
    Verdict,
    gpu_type,
    rate_key,
)
from controller.model.reasons import Reason, Why
from controller.policies.moves.resizing import (
    NAME,
    Needs,
    Record,
    Shrinking,
    in_place,
    kept_gpus,
    may_resize,
    node_of,
    resize,
    usable_gpus,
    waiting_jobs,
    within_reach,
)
from controller.policies.moves.trials import Trial, Trials
from controller.policies.placement.draft import Draft
from controller.policies.recalled import recalled
from controller.policies.settings import GrowSettings, TrialSettings


class Grow:
    """First trials are judged, then jobs shrink for others, then jobs grow."""

    def __init__(self, settings: GrowSettings, trials: TrialSettings) -> None:
        self._settings, self._trials = settings, trials

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        record = recalled(draft.remembered.get(NAME), Record, Record())
        trials = Trials(snapshot, draft, NAME, self._trials)
        record.grown = {job_id: entry for job_id, entry in record.grown.items() if job_id in snapshot.jobs}
        waiting = waiting_jobs(snapshot, draft)
        needs = Needs(snapshot, draft, waiting)
        shrinking = Shrinking(snapshot, draft, record)
        for job_id in shrinking.help(waiting, needs):
            if (trial := trials.of(job_id)) is not None:
                trials.end(trial)
        self._judge(snapshot, draft, trials, record, shrinking)
        self._grow(snapshot, draft, trials, record, needs)
        if self._settings.in_place:
            _widen(snapshot, draft)
        trials.save()
        draft.remember(NAME, record if record != Record() else None)

    # -- trials -----------------------------------------------------------------------------------------

    def _judge(
        self, snapshot: Snapshot, draft: Draft, trials: Trials, record: Record, shrinking: Shrinking
    ) -> None:
        """Jobs whose trials are over keep their GPUs, or go back to the size that they had."""

        def goes_on(trial: Trial) -> bool:
            job = snapshot.jobs[trial.jobs[0]]
            grew = len(job.placement.gpus) > record.grown.get(job.id, (0.0, math.inf))[1]
            return grew and may_resize(draft, job)

        for trial in trials.ripe(goes_on):
            job, rates, gain = snapshot.jobs[trial.jobs[0]], trials.rates(trial), trials.score_of(trial)
            before = record.grown[job.id][1]
            trials.close(trial, gain)
            words = f"it does {gain:.2f} times what it did on {before} GPU{'s' * (before > 1)}"
            if trials.is_gain(gain):
                words = f"keeps its {len(job.placement.gpus)} GPUs: {words}"
                draft.say(job.id, Why(Reason.KEEPS_GPUS, words))
                draft.note(NAME, Verdict.KEPT, [job.id], gain)
                continue
            words = words if rates else "its rate could not be measured"
            resize(draft, job, kept_gpus(snapshot, job, before), words)
            draft.note(NAME, Verdict.UNDONE, [job.id], gain if rates else None)
            shrinking.note(job, before)

    # -- growing ----------------------------------------------------------------------------------------

    def _grow(self, snapshot: Snapshot, draft: Draft, trials: Trials, record: Record, needs: Needs) -> None:
        jobs: dict[str, list[Job]] = {}
        for job in snapshot.jobs.values():
            allowed = self._settings.in_place or not in_place(job)
            if allowed and may_resize(draft, job) and not trials.busy(job.id):
                jobs.setdefault(node_of(job.placement.gpus), []).append(job)
        idle_before, record.idle = record.idle, {}
        for name in sorted(jobs):
            gpus = draft.free(snapshot).on(name)
            # It goes on with the GPUs that it has, too.
            sound = [job for job in jobs[name] if job.placement.gpus == usable_gpus(snapshot, job)]
            growing = _Growing(snapshot, trials, sound, gpus, self._trials.cooldown_seconds)
            if growing.next() is None or needs.at(name):
                continue
            since, count = idle_before.get(name, (snapshot.time, len(gpus)))
            # The wall clock may have been set back.
            since = min(since, snapshot.time) if count == len(gpus) else snapshot.time
            record.idle[name] = (since, len(gpus))
            due = since + self._settings.idle_seconds
            if snapshot.time < due:
                draft.wake(due)
                continue
            growing.begin(draft, record)
            del record.idle[name]


class _Growing:
    """Who on one node gets which of its free GPUs."""

    def __init__(
        self, snapshot: Snapshot, trials: Trials, jobs: Iterable[Job], free: list[GpuId], known_seconds: float
    ) -> None:
        """`known_seconds`: as for `_rates`."""
        self._snapshot, self._trials, self._left = snapshot, trials, free
        self._sizes = {job.id: len(job.placement.gpus) for job in jobs}
        self._rates = {i: _rates(snapshot, snapshot.jobs[i], known_seconds) for i in self._sizes}

    def next(self) -> Job | None:
        """The job whose size is doubled next: the one that gains most for each GPU, as a part of its rate
        with the size that it asked for. Jobs of which that is not known come after: the largest, then the
        oldest."""
        best: tuple[tuple[float, ...], Job] | None = None
        for job_id, size in self._sizes.items():
            job = self._snapshot.jobs[job_id]
            room = len(within_reach(job, self._left))
            if size > room or 2 * size > job.request.size.most or not self._pays(job, size):
                continue
            gain = self._gain(job, size)
            rank = (gain is None, -(gain or 0.0), -size, job.submit_time, job.id)
            if best is None or rank < best[0]:
                best = (rank, job)
        return None if best is None else best[1]

    def begin(self, draft: Draft, record: Record) -> None:
        """All that grow do so, on trial where their rate before is known and that after is not."""
        for job, taken in self._all():
            before, gpus = len(job.placement.gpus), job.placement.gpus | frozenset(taken)
            what, rate = _what(self._snapshot, job, before, len(gpus)), self._rates[job.id].get(before)
            score = self._trials.score(what)
            on_trial = rate is not None and score is None
            if rate is not None and on_trial:
                self._trials.begin(what, {job.id: rate})
            record.grown[job.id] = (self._snapshot.time, before)
            resize(draft, job, gpus, f"GPUs of {node_of(gpus)} are free that no job waits for")
            draft.note(NAME, Verdict.TRIED if on_trial else Verdict.PLANNED, [job.id], score)

    def _all(self) -> list[tuple[Job, list[GpuId]]]:
        """All that grow, each with the GPUs that it takes."""
        taken: dict[JobId, list[GpuId]] = {}
        while (job := self.next()) is not None:
            size = self._sizes[job.id]
            more = within_reach(job, self._left)[:size]
            taken.setdefault(job.id, []).extend(more)
            self._left = [gpu for gpu in self._left if gpu not in more]
            self._sizes[job.id] = 2 * size
        return [(self._snapshot.jobs[job_id], gpus) for job_id, gpus in taken.items()]

    def _pays(self, job: Job, size: int) -> bool:
        """Whether nothing that is known speaks against twice the size."""
        rates, now = self._rates[job.id], len(job.placement.gpus)
        score = self._trials.score(_what(self._snapshot, job, now, 2 * size))
        if score is None and size in rates and 2 * size in rates:
            score = rates[2 * size] / rates[size]
        return score is None or self._trials.is_gain(score)

    def _gain(self, job: Job, size: int) -> float | None:
        """Of the next doubling, for each GPU."""
        rates = self._rates[job.id]
        if size not in rates or 2 * size not in rates:
            return None
        return (rates[2 * size] - rates[size]) / rates.get(job.request.size.wanted, rates[size]) / size


def _rates(snapshot: Snapshot, job: Job, known_seconds: float) -> Mapping[int, float]:
    """Samples/s by number of GPUs of one node, alone on the type that it is on. What was measured longer
    than `known_seconds` ago with another number than it has now counts no more, like a trial's result."""
    kind, now = gpu_type(job.placement.gpus, snapshot.nodes), len(job.placement.gpus)
    table, since = snapshot.rates.get(rate_key(job), {}), snapshot.time - known_seconds
    return {
        where.gpus: rate.samples_per_second
        for where, rate in table.items()
        if where == Configuration(kind, where.gpus) and rate.samples_per_second > 0
        if rate.measured_at > since or where.gpus == now or rate.provenance is not Provenance.MEASURED
    }


def _what(snapshot: Snapshot, job: Job, before: int, after: int) -> str:
    return f"{rate_key(job)} from {before} to {after} {gpu_type(job.placement.gpus, snapshot.nodes)}"


def _widen(snapshot: Snapshot, draft: Draft) -> None:
    """Jobs that may change their size in place are bound to all GPUs of their node when they start, and
    float there: what they grow into is in their allocation then. Those that this plan places on GPUs of one
    node, and that have no promise elsewhere."""
    bound = draft.bound(snapshot)
    for job_id in sorted(draft.put_since()):
        job, placement = snapshot.jobs[job_id], draft.of(job_id)
        names = {gpu.node for gpu in placement.allocation}
        new = job.may_resize_here and not job.placement.allocation and not job.promised
        if not new or not placement.gpus or placement.shares_with or len(names) != 1:
            continue
        node = snapshot.nodes[names.pop()]
        if node.unconfined:
            continue  # it could use all of them at once
        room = {gpu.id for gpu in node.gpus if gpu.usable and bound[gpu.id] < gpu.shards}
        draft.put(job_id, Placement(placement.gpus, placement.allocation | room))
