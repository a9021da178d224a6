# SPDX-License-Identifier: GPL-2.0-or-later
"""The mechanism that serves orders: jobs compete in lanes, and run in order.

A lane is a set of GPUs that jobs compete for: one for the cluster makes gangs, one for each node makes
slices. `Ranks` knows the order; `GangLanes` and `SliceLanes`, the two kinds, know who competes where and
which GPUs fit. This module knows when jobs change by themselves.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from controller.model import Job, JobId, Note, Placement, Reason, Snapshot, Usage, Why
from controller.model.timers import TINY, Timers
from controller.policies import budget
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.mechanism import Mechanism
from controller.policies.mechanisms.ranks import Ranks
from controller.policies.mechanisms.row import ASIDE, FIXED, Row, arrival, standing
from controller.policies.orders.order import Order
from controller.policies.placement.draft import Draft
from controller.policies.recalled import mapping


class Ordered(Mechanism):
    """An order; lanes derive from it."""

    notes_on_arrival = True
    """A job gets its note when it comes; else when it joins a lane."""

    def __init__(self, order: Order, *, preempt: bool = True) -> None:
        """`preempt`: running jobs may be stopped for others."""
        self._ranks, self._preempt = Ranks(order), preempt

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        self._rows = rows
        self._timers = Timers()
        self._polled: set[JobId] = set()
        """Jobs whose time has to be asked for."""
        self._polled_wake = math.inf
        """The first of their times, as of this plan."""
        self._unsettled: set[JobId] = set()
        """Running jobs that were advanced, and about which no whole decision was made since."""
        self._ranks.reset(mapping(common.get("order")))

    def begin(self, snapshot: Snapshot) -> None:
        self._now = snapshot.time
        self._ranks.begin_plan(self._now)
        self.changed: dict[JobId, None] = {}

    # -- what lanes know ------------------------------------------------------------------------------

    @abstractmethod
    def enter(self, row: Row) -> float:
        """Put a job where it stands; returns when that changes by itself."""

    @abstractmethod
    def give(self, draft: Draft) -> None:
        """Who runs where."""

    def kept_until(self, job: Job) -> float:
        """Until then a job that runs is not stopped, whatever its place. -inf: it may be."""
        return -math.inf

    def rekey(self) -> None:
        """The keys of all jobs that are in lanes are others."""
        return  # lanes that ask for keys whenever they decide

    def remembered(self) -> Mapping[str, Any]:
        """What lanes remember beyond jobs."""
        return {}

    # -- where jobs stand -----------------------------------------------------------------------------

    def row(self, job: Job, usage: Usage, note: Note) -> Row:
        return Row(job, usage, note=self._ranks.read(note))

    def ended(self, job_id: JobId, row: Row | None, note: Note, usage: Usage) -> None:
        if (note if row is not None else self._ranks.read(note)) is not None:
            self._ranks.ended(job_id, usage)

    def follow(self, rows: Sequence[Row]) -> None:
        rows = sorted(rows, key=arrival)
        for row in rows:
            self._ranks.seen(row)
        if self._ranks.learned and self._ranks.recall():
            self.rekey()
        for row in rows:
            if row.note is None and self.notes_on_arrival:
                self._ranks.begin(row, ())
            self._enter(row)

    def leave(self, row: Row) -> None:
        self._unsettled.discard(row.id)
        self._timers.set(row.id, math.inf)
        self._polled.discard(row.id)

    def _enter(self, row: Row) -> None:
        job, kept_until = row.job, self.kept_until(row.job)
        fixed = not self._preempt or kept_until > self._now + TINY
        row.standing, row.key = standing(job, self._rows, fixed=fixed), self._ranks.key(row)
        if self._ranks.unsettled(row):
            self._unsettled.add(row.id)
        until = self.enter(row)
        if row.standing is ASIDE:
            if job.held_until is not None and job.held_until > self._now:
                until = job.held_until
        else:
            own = self._ranks.until(row)
            if own < math.inf and self._ranks.polled(row):
                self._polled.add(row.id)
                self._polled_wake = min(self._polled_wake, own)
            else:
                until = min(until, own)
        if row.standing is FIXED and kept_until > self._now:
            until = min(until, kept_until)
        self._timers.set(row.id, until)
        self.changed[row.id] = None

    def _advance(self, left: budget.Budget) -> None:
        """Jobs whose time has come: their notes or standings change."""
        most = max(1, left.left // budget.ADVANCE)
        due = {job_id: self._rows[job_id] for job_id in self._timers.due(self._now, most)}
        left.more |= len(due) == most
        left.spend(budget.ADVANCE * len(due))
        self._polled_wake = math.inf
        for row in [self._rows[job_id] for job_id in self._polled]:
            until = self._ranks.until(row)
            if until <= self._now + TINY:
                due[row.id] = row
            else:
                self._polled_wake = min(self._polled_wake, until)
        for row in sorted(due.values(), key=arrival):
            self.leave(row)
            if row.standing is not ASIDE:
                self._ranks.advance(row)
            self._enter(row)

    # -- deciding -------------------------------------------------------------------------------------

    def decide(self, snapshot: Snapshot, draft: Draft) -> Mapping[JobId, Placement]:
        """The plan with the last of the jobs whose time has come decides."""
        self._advance(draft.budget)
        if not draft.budget.more:
            self.give(draft)
        return {}

    def settle(self, changes: Mapping[JobId, Placement], *, whole: bool) -> None:
        """The lanes need not know: they see it when it is observed."""
        for job_id, placement in changes.items():
            row = self._rows[job_id]
            if bool(placement.gpus) != (row.usage.since is not None):
                self._ranks.settle(row, self._after(row, len(placement.gpus)))
        if not whole:
            return
        # Jobs that the whole decision did not stop go on.
        for row in sorted((self._rows[job_id] for job_id in self._unsettled), key=arrival):
            if self._ranks.unsettled(row):
                self._ranks.settle(row)
                self.leave(row)
                self._enter(row)
        self._unsettled.clear()

    def _after(self, row: Row, gpus: int) -> Usage:
        return row.usage.started(self._now, gpus) if gpus else row.usage.stopped(self._now)

    def to_store(self, row: Row, to: Placement) -> bool:
        return False

    # -- words ----------------------------------------------------------------------------------------

    def starts(self, row: Row) -> Why:
        return sentences.STARTS

    def stops(self, row: Row) -> Why:
        return sentences.stops(self._ranks.words(row, self._after(row, 0)))

    def stays(self, row: Row, to: Placement) -> Why | None:
        return None

    def waits(self, row: Row) -> Why:
        return Why(Reason.WAITS_FOR_TURN, self._ranks.words(row))

    # -- memory ---------------------------------------------------------------------------------------

    def common(self) -> Mapping[str, Any]:
        return {"order": self._ranks.common, "lanes": self.remembered()}

    def notes(self) -> Mapping[JobId, Note]:
        return self._ranks.notes

    def wake(self) -> float:
        return min(self._timers.first(), self._polled_wake)
