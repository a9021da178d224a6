# SPDX-License-Identifier: GPL-2.0-or-later
"""The mechanism that serves orders: jobs compete in lanes, run in order, and moves follow.

A lane is a set of GPUs that jobs compete for: one for the cluster makes gangs, one for each server makes
slices. `Ranks` knows the order; `GangLanes` and `SliceLanes` know who competes where and which GPUs fit. This
module follows what is observed, and puts a plan together.

The plan depends on the snapshot and the memory alone. What is kept between calls only saves work: tests
compare each plan with one made from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.model import NOWHERE, Job, JobId, Memory, Placement, Plan, Snapshot, StateAt, Target
from controller.model.timers import TINY, Timers
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.lanes import Lanes
from controller.policies.mechanisms.ranks import Ranks
from controller.policies.mechanisms.row import ASIDE, FIXED, RUNNING, WAITING, Row, Standing, is_guest
from controller.policies.moves.move import Move
from controller.policies.moves.part import part, with_partners
from controller.policies.orders.order import Order
from controller.policies.placement.draft import Draft, hold
from controller.policies.recalled import mapping

_PORTION_JOBS = 2000
"""So many jobs whose time has come are looked at with one plan. Where there are more, the next plans, asked
for at once, go on, and the one with the last of them decides."""


class InOrder:
    """An order, lanes and moves, composed into a policy."""

    def __init__(
        self, order: Order, lanes: Lanes, *, preempt: bool = True, moves: Sequence[Move] = ()
    ) -> None:
        """`preempt`: running jobs may be stopped for others."""
        self._ranks, self._lanes, self._preempt = Ranks(order), lanes, preempt
        self._moves, self._moves_remember = tuple(moves), mapping(None)
        self._reset(Snapshot(time=0.0, nodes={}, jobs={}), Memory())

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from now on. `memory` is read only where everything changed.

        Cost: what changed, and the search of the lanes; from nothing O(jobs log jobs + GPUs).
        """
        self._now, changed = snapshot.time, snapshot.changed
        known = not changed.everything and self._lanes.nodes_changed(snapshot, changed)
        if not known:
            self._reset(snapshot, memory if changed.everything else self._remembered())
        self._ranks.begin_plan(self._now)
        self._reasons: dict[JobId, str] = {}
        """Of jobs that this plan does not decide about."""
        touched = set(changed.jobs if known else {*snapshot.jobs, *self._recalled})
        self._take_over(snapshot, touched)
        more = self._advance()
        draft = Draft(self._lanes, self._placements, self._moves_remember)
        more = more or self._lanes.decide(draft, self._now, self._ranks)
        mark = draft.mark()
        if self._sharing:
            part(snapshot, draft, with_partners(snapshot, touched | draft.put_since()) & self._sharing)
        # Moves follow a decision that is whole, and the moves before them.
        for move in () if more else self._moves:
            move.propose(snapshot, draft)
            if draft.wake_at <= self._now:
                break
        moves_learned = draft.remembered != self._moves_remember
        self._moves_remember = draft.remembered
        targets = draft.changes()
        for job_id, placement in targets.items():
            self._settle(self._rows[job_id], placement, draft)
        if not more:
            self._settle_advanced()
        return Plan(
            {job_id: _target(self._rows[job_id].job, placement) for job_id, placement in targets.items()},
            {**self._reasons, **draft.said},
            Memory(self._common_changes(moves_learned), self._ranks.notes),
            # What a move freed is for the mechanism.
            self._now
            if more or draft.freed_since(mark)
            else max(self._now, min(self._wake(), draft.wake_at)),
            tuple(draft.moved),
        )

    # -- memory ---------------------------------------------------------------------------------------

    def _reset(self, snapshot: Snapshot, memory: Memory) -> None:
        self._now = snapshot.time
        self._rows: dict[JobId, Row] = {}
        self._placements: dict[JobId, Placement] = {}
        """What jobs have as far as others are concerned."""
        self._timers = Timers()
        self._polled = Timers()
        """When jobs whose time has to be asked for have to be asked again at the soonest."""
        self._polled_wake = math.inf
        """The first of their times, as of this plan."""
        self._sharing: set[JobId] = set()
        """Jobs that were seen on GPUs together with others."""
        self._unsettled: set[JobId] = set()
        """Running jobs that were advanced, and about which no whole decision was made since."""
        self._reason_is_off_gpus: set[JobId] = set()
        """Jobs whose last reason is one of a job off its GPUs."""
        self._recalled = dict(memory.jobs)
        """Notes of jobs that were not seen yet."""
        self._ranks.reset(mapping(memory.common.get("order")))
        self._common_of_lanes = mapping(memory.common.get("lanes"))
        self._lanes.reset(snapshot, self._common_of_lanes, self._rows)
        self._moves_remember = mapping(memory.common.get("moves"))

    def _common(self) -> dict[str, Any]:
        common: dict[str, Any] = {"order": self._ranks.common, "lanes": self._common_of_lanes}
        return {**common, "moves": self._moves_remember} if self._moves else common

    def _remembered(self) -> Memory:
        return Memory(self._common(), {job_id: row.note for job_id, row in self._rows.items()})

    def _common_changes(self, moves_learned: bool) -> Mapping[str, Any]:
        before, self._common_of_lanes = self._common_of_lanes, self._lanes.common()
        learned = self._ranks.learned or moves_learned or self._common_of_lanes != before
        return self._common() if learned else {}

    def _wake(self) -> float:
        return max(self._now, min(self._timers.first(), self._lanes.wake(self._ranks), self._polled_wake))

    # -- taking over what was observed ----------------------------------------------------------------

    def _take_over(self, snapshot: Snapshot, ids: Iterable[JobId]) -> None:
        touched: list[Row] = []
        for job_id in sorted(with_partners(snapshot, ids)):
            job, row = snapshot.jobs.get(job_id), self._rows.get(job_id)
            usage = snapshot.usage_of(job_id)
            note = self._ranks.read(self._recalled.pop(job_id, None)) if row is None else row.note
            if row is not None:
                self._leave(row)
            if job is None:
                if row is not None:
                    self._forget(row)
                if note is not None:
                    self._ranks.ended(job_id, usage)
                continue
            if row is None:
                row = self._rows[job_id] = Row(job, usage, note=note)
            elif job.placement.gpus and row.job.placement.shares_with - job.placement.shares_with:
                self._reasons[job_id] = sentences.PARTED
            row.job, row.usage, row.profile = job, usage, snapshot.profile_of(job_id)
            if job.placement.shares_with:
                self._sharing.add(job_id)
            else:
                self._sharing.discard(job_id)
            self._hold(job_id, self._lanes.held(job))
            self._ranks.seen(row)
            touched.append(row)
        if self._ranks.learned and self._ranks.recall():
            self._lanes.rekey(self._ranks)
        for row in sorted(touched, key=_arrival):
            if row.note is None and self._lanes.notes_on_arrival:
                self._ranks.begin(row, ())
            self._enter(row)

    def _forget(self, row: Row) -> None:
        self._hold(row.id, NOWHERE)
        self._reason_is_off_gpus.discard(row.id)
        self._sharing.discard(row.id)
        del self._rows[row.id]

    def _hold(self, job_id: JobId, placement: Placement) -> None:
        if self._placements.get(job_id, NOWHERE) != placement:
            hold(self._lanes, self._placements, job_id, placement)

    # -- where jobs stand -----------------------------------------------------------------------------

    def _standing(self, job: Job) -> Standing:
        if job.leaving:
            return ASIDE
        if not job.placement.gpus:
            return WAITING if job.may_start else ASIDE
        guest = is_guest(job.id, job.placement, self._rows)
        if guest or self._lanes.kept_until(job) > self._now + TINY:
            return FIXED
        return RUNNING if self._preempt and self._may_stop(job) else FIXED

    def _may_stop(self, job: Job) -> bool:
        """Its guests have to leave with it."""
        guests = [self._rows[job_id].job for job_id in job.placement.shares_with if job_id in self._rows]
        return job.may_stop and all(guest.may_stop for guest in guests)

    def _enter(self, row: Row) -> None:
        job = row.job
        row.standing, row.key = self._standing(job), self._ranks.key(row)
        if self._ranks.unsettled(row):
            self._unsettled.add(row.id)
        until = self._lanes.enter(row, self._now)
        if row.standing is ASIDE:
            if job.held_until is not None and job.held_until > self._now:
                until = job.held_until
        else:
            own = self._ranks.until(row)
            if own < math.inf and self._ranks.polled(row):
                self._polled.set(row.id, self._ranks.ask_at(row, own))
                self._polled_wake = min(self._polled_wake, own)
            else:
                until = min(until, own)
        if row.standing is FIXED and self._lanes.kept_until(job) > self._now:
            until = min(until, self._lanes.kept_until(job))
        self._timers.set(row.id, until)
        self._explain(row)

    def _leave(self, row: Row) -> None:
        self._lanes.leave(row)
        self._unsettled.discard(row.id)
        self._timers.set(row.id, math.inf)
        self._polled.set(row.id, math.inf)

    def _refresh(self, row: Row) -> None:
        self._leave(row)
        self._enter(row)

    def _advance(self) -> bool:
        """Jobs whose time has come: their notes or standings change. Returns whether there may be more."""
        due = {job_id: self._rows[job_id] for job_id in self._timers.due(self._now, _PORTION_JOBS)}
        more = len(due) == _PORTION_JOBS
        self._polled_wake, asked = math.inf, list[tuple[Row, float]]()
        while self._polled.first() < self._polled_wake:
            row = self._rows[self._polled.pop()]
            until = self._ranks.until(row)
            if until <= self._now + TINY:
                due[row.id] = row
            else:
                self._polled_wake = min(self._polled_wake, until)
                asked.append((row, until))
        for row, until in asked:
            self._polled.set(row.id, self._ranks.ask_at(row, until))
        for row in sorted(due.values(), key=_arrival):
            self._leave(row)
            if row.standing is not ASIDE:
                self._ranks.advance(row)
            self._enter(row)
        return more

    def _settle_advanced(self) -> None:
        """Jobs that the whole decision did not stop go on."""
        for row in sorted((self._rows[job_id] for job_id in self._unsettled), key=_arrival):
            if self._ranks.unsettled(row):
                self._ranks.settle(row)
                self._refresh(row)
        self._unsettled.clear()

    def _settle(self, row: Row, placement: Placement, draft: Draft) -> None:
        """The plan gives this to a job: it starts, stops, moves, or is promised GPUs. It will be observed
        before it is decided about again, so the lanes need not know."""
        usage, runs = row.usage, bool(placement.gpus)
        if runs == (usage.since is not None):
            return
        after = usage.started(self._now, len(placement.gpus)) if runs else usage.stopped(self._now)
        self._ranks.settle(row, after)
        if runs:
            self._reason_is_off_gpus.discard(row.id)
            draft.said.setdefault(row.id, sentences.STARTS)
        else:
            self._reason_is_off_gpus.add(row.id)
            draft.said.setdefault(row.id, sentences.stops(self._ranks.words(row, after)))

    def _explain(self, row: Row) -> None:
        """Why a job that this plan does not start is where it is."""
        job = row.job
        if row.standing is WAITING:
            words = self._lanes.waits(row, self._ranks.words(row))
        elif job.switching or job.leaving:
            return
        elif row.standing is ASIDE:
            words = sentences.aside(job)
        elif row.id in self._reason_is_off_gpus:
            self._reason_is_off_gpus.discard(row.id)
            self._reasons[row.id] = sentences.still_on(job)
            return
        else:
            return
        self._reason_is_off_gpus.add(row.id)
        self._reasons[row.id] = words


def _arrival(row: Row) -> tuple[float, JobId]:
    return row.job.submit_time, row.id


def _target(job: Job, placement: Placement) -> Target:
    """Outside of its allocation a job goes on from the store."""
    had = job.placement
    migrates = bool(had.allocation and placement.gpus) and placement.allocation != had.allocation
    return Target(placement, StateAt.STORE if migrates else StateAt.HOST)
