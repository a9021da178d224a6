# SPDX-License-Identifier: GPL-2.0-or-later
"""Packing: a waiting job, the guest, joins a running one, its host, on the same GPUs, where both may share
them (SPEC 1.4). Jobs wait only where GPUs are short, so nothing is packed while there is room.

Both must have run alone. They are packed on trial, and parted again if together they do not do more than they
would in turns. The mechanism does not count guests: a guest leaves when its host does.

Source: Gandiva (OSDI'18) 4.3.
"""

from __future__ import annotations

from itertools import islice

from controller.model import Configuration, Job, JobId, Placement, Snapshot, Verdict, rate_key
from controller.model.reasons import Reason, Why
from controller.policies import budget
from controller.policies.moves.hosts import Hosts
from controller.policies.moves.trials import Trials
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import tightest
from controller.policies.placement.sharing import can_join, peak_bytes, refusal_to_share, utilization
from controller.policies.recalled import recalled
from controller.policies.settings import TrialSettings

NAME = "pack"
"""What the draft remembers under it, where one plan does not look at all running jobs: that with which the
next plan, asked for at once, begins, and whether pairs were made since the first one. A round that made pairs
is followed by another one."""
_ROUND_SECONDS = 60.0
"""So long after one that made none they are looked at again (SPEC 1.9)."""
IN_TURNS = 1.0
"""The score of jobs that take turns: the sum of their rates relative to those alone."""


class Pack:
    """At most two jobs on a GPU."""

    def __init__(self, settings: TrialSettings) -> None:
        self._settings = settings

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        trials = Trials(snapshot, draft, NAME, self._settings)
        self._pack(snapshot, draft, trials)
        # Of plans that follow one another at once the last one looks after the pairs.
        if draft.wake_at > snapshot.time:
            self._judge(snapshot, draft, trials)
            self._watch(snapshot, draft, trials)
            self._spread(snapshot, draft, trials)
        trials.save()

    # -- pairs that are together ------------------------------------------------------------------------

    def _judge(self, snapshot: Snapshot, draft: Draft, trials: Trials) -> None:
        """Keep the pairs whose trials are over, or part them."""
        for trial in trials.ripe(lambda trial: _together(snapshot, draft, trial.jobs)):
            guest, rates = snapshot.jobs[max(trial.jobs)], trials.rates(trial)
            score = trials.score_of(trial)
            kept = trials.is_gain(score)
            if not kept and not guest.may_stop:
                continue
            trials.close(trial, score)
            if not kept:
                words = _gain(score) if rates else "their rates together could not be measured"
                self._part(guest.id, min(trial.jobs), draft, words)
                draft.note(NAME, Verdict.UNDONE, trial.jobs, score if rates else None)
                continue
            draft.note(NAME, Verdict.KEPT, trial.jobs, score)
            for job_id, other in (trial.jobs, trial.jobs[::-1]):
                words = f"shares its GPUs with job {other}: {_gain(score)}"
                draft.say(job_id, Why(Reason.SHARES_GPUS, words))

    def _watch(self, snapshot: Snapshot, draft: Draft, trials: Trials) -> None:
        """Part kept pairs that have become slower than in turns."""
        for guest_id in [i for i in snapshot.job_rates if draft.of(i).guest(i) and not trials.busy(i)]:
            host_id = min(draft.of(guest_id).shares_with)
            pair, guest = (host_id, guest_id), snapshot.jobs[guest_id]
            if (
                host_id not in snapshot.job_rates
                or not _together(snapshot, draft, pair)
                or not guest.may_stop
            ):
                continue
            host, gpus = snapshot.jobs[host_id], draft.of(guest_id).gpus
            where = Configuration.of(gpus, snapshot.nodes)
            before = _rates_alone(snapshot, (host, guest), where)
            score = sum(snapshot.job_rates[i].samples_per_second / rate for i, rate in before.items())
            if before and score < IN_TURNS:
                trials.judge(_what(host, guest, where), score)
                self._part(guest_id, host_id, draft, _gain(score))
                draft.note(NAME, Verdict.UNDONE, pair, score)

    def _spread(self, snapshot: Snapshot, draft: Draft, trials: Trials) -> None:
        """Guests that may migrate go to GPUs that the mechanism has no use for."""
        guests = [i for i, each in draft.placements.items() if each.shares_with and each.guest(i)]
        guests = [i for i in guests if snapshot.jobs[i].may_stop and snapshot.jobs[i].may_migrate]
        if not guests or not (free := draft.free(snapshot)):
            return
        for guest_id in sorted(guests):
            guest, (host_id,) = snapshot.jobs[guest_id], draft.of(guest_id).shares_with
            if trials.busy(guest_id) or not _together(snapshot, draft, (host_id, guest_id)):
                continue
            name = tightest(free, guest, snapshot.nodes)
            if name is not None:
                gpus = frozenset(free.on(name)[: guest.gpus])
                self._part(guest_id, host_id, draft, f"{guest.gpus} GPUs of {name} are free")
                draft.put(guest_id, Placement(gpus, gpus))
                if not draft.budget.spend(budget.PAIR):
                    draft.wake(snapshot.time)
                    return

    def _part(self, guest_id: JobId, host_id: JobId, draft: Draft, why: str) -> None:
        host = draft.of(host_id)
        draft.put(guest_id, Placement(frozenset(), draft.of(guest_id).allocation))
        draft.put(host_id, Placement(host.gpus, host.allocation))
        draft.say(guest_id, Why(Reason.SHARES_GPUS, f"stops sharing GPUs with job {host_id}: {why}"))
        words = f"has its GPUs to itself again, without job {guest_id}: {why}"
        draft.say(host_id, Why(Reason.SHARES_GPUS, words))

    # -- new pairs --------------------------------------------------------------------------------------

    def _pack(self, snapshot: Snapshot, draft: Draft, trials: Trials) -> None:
        waiting = [job for job in snapshot.jobs.values() if job.may_start and job.request.may_pack]
        begin, made = recalled(draft.remembered.get(NAME), tuple[JobId, bool], (JobId(0), False))
        following: JobId | None = None
        if waiting:
            hosts = Hosts(snapshot, draft, trials.busy, begin)
            pairs, all_seen = False, True
            if hosts.ids:
                pairs, all_seen = self._fill(snapshot, draft, trials, hosts, waiting)
            made, following = made or pairs, hosts.next if all_seen else begin
        draft.remember(NAME, None if following is None else (following, made))
        if following is not None or (begin and made):
            draft.wake(snapshot.time)
        elif begin:
            draft.wake(snapshot.time + _ROUND_SECONDS)

    def _fill(
        self, snapshot: Snapshot, draft: Draft, trials: Trials, hosts: Hosts, waiting: list[Job]
    ) -> tuple[bool, bool]:
        """Guests join these hosts. Whether any did, and whether they all were looked at."""
        guests = [
            job
            for job in waiting
            if (_on_trial(job, trials, hosts) if trials.busy(job.id) else hosts.any_for(job))
        ]
        in_vain: set[object] = set()
        """Guests of these kinds gain with none of the hosts that are tried for them."""
        made = False
        for guest in sorted(guests, key=lambda job: _first(snapshot, job)):
            trial, kind = trials.of(guest.id), _kind(guest)
            if (trial is None and kind in in_vain) or not _may_join(snapshot, guest, draft):
                continue
            alike = trial is None
            found = hosts.with_room(guest, peak_bytes(snapshot, guest))
            for host_id in islice(found, budget.TRIED) if trial is None else _on_trial(guest, trials, hosts):
                # The job with the lower id stands for both: it must be the one that the mechanism runs.
                if host_id > guest.id:
                    alike = False
                    continue
                host, gpus = snapshot.jobs[host_id], draft.of(host_id).gpus
                where = Configuration.of(gpus, snapshot.nodes)
                before = _rates_alone(snapshot, (host, guest), where)
                if not before:
                    continue
                what = _what(host, guest, where)
                score = trials.score(what)
                if score is not None and not trials.is_gain(score):
                    continue
                alike = False
                may_share = not refusal_to_share(snapshot, host, guest, gpus)
                if may_share and can_join(snapshot, guest, gpus, draft.bound(snapshot)):
                    hosts.ids.remove(host_id)
                    if score is None and trial is None:
                        trials.begin(what, before)
                    self._join(guest, host_id, draft, score)
                    made = True
                    if not draft.budget.spend(budget.PAIR):
                        return made, False
                    break
            if alike:
                in_vain.add(kind)
        return made, True

    def _join(self, guest: Job, host_id: JobId, draft: Draft, score: float | None) -> None:
        host = draft.of(host_id)
        allocation = guest.placement.allocation or host.gpus
        draft.put(host_id, Placement(host.gpus, host.allocation, frozenset({guest.id})))
        draft.put(guest.id, Placement(host.gpus, allocation, frozenset({host_id})))
        why = "their memory fits together, and their rates are being compared"
        if score is not None:
            why = _gain(score, "such jobs")
        draft.say(guest.id, Why(Reason.SHARES_GPUS, f"joins job {host_id} on its GPUs: {why}"))
        draft.say(host_id, Why(Reason.SHARES_GPUS, f"shares its GPUs with job {guest.id}: {why}"))
        draft.note(NAME, Verdict.TRIED if score is None else Verdict.PLANNED, (host_id, guest.id), score)


def _on_trial(guest: Job, trials: Trials, hosts: Hosts) -> list[JobId]:
    """The host of an open trial of the move, for its guest."""
    trial = trials.of(guest.id)
    return [] if trial is None else [job_id for job_id in trial.jobs if job_id in hosts.ids]


def _first(snapshot: Snapshot, job: Job) -> tuple[float, ...]:
    return (-job.priority_class, utilization(snapshot, job), job.submit_time, job.id)


def _kind(guest: Job) -> object:
    """Equal for guests that gain with the same hosts."""
    return (rate_key(guest), guest.request.size.wanted, guest.priority_class, guest.placement.allocation)


def _gain(score: float, who: str = "they") -> str:
    return f"together {who} do {score:.2f} times what they do in turns"


def _what(host: Job, guest: Job, where: Configuration) -> str:
    """The models, or jobs without one, and where."""
    names = sorted(rate_key(job) for job in (host, guest))
    return f"{' + '.join(names)} on {where.nodes} x {where.gpus // where.nodes} {where.gpu_type}"


def _together(snapshot: Snapshot, draft: Draft, jobs: tuple[JobId, ...]) -> bool:
    """Whether both are on the same GPUs, with nothing under way, and stay there."""
    for job_id in jobs:
        job, there = snapshot.jobs[job_id], draft.of(job_id)
        if not job.placement.gpus or job.placement.gpus != there.gpus or job.switching:
            return False
        others = frozenset(jobs) - {job_id}
        if job.placement.shares_with != others or there.shares_with != others:
            return False
    return True


def _may_join(snapshot: Snapshot, job: Job, draft: Draft) -> bool:
    known = rate_key(job) in snapshot.rates and peak_bytes(snapshot, job) > 0
    return known and not draft.of(job.id).gpus


def _rates_alone(snapshot: Snapshot, jobs: tuple[Job, ...], where: Configuration) -> dict[JobId, float]:
    """Samples/s of each job, or of others with its model, in this configuration, alone. Empty: of one it is
    not known."""
    found: dict[JobId, float] = {}
    for job in jobs:
        rate = snapshot.rates.get(rate_key(job), {}).get(where)
        if rate is None or rate.samples_per_second <= 0:
            return {}
        found[job.id] = rate.samples_per_second
    return found
