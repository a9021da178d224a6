# SPDX-License-Identifier: GPL-2.0-or-later
"""The mechanism that serves orders: jobs compete in lanes, run in order, and moves follow.

A lane is a set of GPUs that jobs compete for: one for the cluster makes gangs, one for each server makes
slices. This module keeps rows, notes and timers; `GangLanes` and `SliceLanes` say who competes where and
which GPUs fit.

The plan depends on the snapshot and the memory alone. What is kept between calls only saves work: tests
compare each plan with one made from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from controller.model import (
    NOWHERE,
    Changes,
    Job,
    JobId,
    Memory,
    Note,
    Placement,
    Plan,
    Snapshot,
    Target,
    Usage,
)
from controller.policies.mechanisms.row import ASIDE, FIXED, RUNNING, WAITING, Key, Ranking, Row, Standing
from controller.policies.moves.move import Move
from controller.policies.orders.order import Order
from controller.policies.placement.draft import Draft, Room

_TINY = 1e-6
"""Seconds below which two times count as equal."""


class Lanes(Room, Protocol):
    """Who competes where, and which GPUs fit."""

    notes_on_arrival: bool
    """A job gets its note when it comes; else when it joins a lane."""
    reasons: dict[JobId, str]
    """Sentences for jobs, of the last decision."""

    @property
    def contested(self) -> bool:
        """A job waits where others run that may be stopped."""

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any]) -> None:
        """Begin anew, with no job known."""

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        """False: they offer other GPUs than before, so begin anew."""

    def common(self) -> Mapping[str, Any]:
        """What `reset` takes."""

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned."""

    def know(self, row: Row) -> None:
        """A job came, or is not as it was; before `change` is told what it has."""

    def forget(self, row: Row) -> None:
        """A job has left the cluster."""

    def kept_until(self, job: Job) -> float:
        """Until then a job that runs is not stopped, whatever its place. -inf: it may be."""

    def enter(self, row: Row, now: float) -> float:
        """Put a job where it stands; returns when that changes by itself."""

    def leave(self, row: Row) -> None:
        """Take it out again."""

    def decide(self, draft: Draft, now: float, ranking: Ranking) -> bool:
        """Who runs where. True: there is more to decide; plan again at once."""

    def wake(self) -> float:
        """When to decide again, beyond the jobs' own times."""


class InOrder:
    """An order, lanes and moves, composed into a policy."""

    def __init__(
        self,
        order: Order,
        lanes: Lanes,
        *,
        preempt: bool = True,
        moves: Sequence[Move] = (),
    ) -> None:
        """`preempt`: running jobs may be stopped for others."""
        self._given_order, self._lanes, self._moves = order, lanes, tuple(moves)
        self._preempt = preempt
        self._reset(Snapshot(time=0.0, nodes={}, jobs={}), Memory())

    # -- the plan -------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from now on. `memory` is read only where everything changed.

        Cost: what changed, and the search of the lanes; from nothing O(jobs log jobs + GPUs).
        """
        self._now = now = snapshot.time
        changed = snapshot.changed
        known = not changed.everything and self._lanes.nodes_changed(snapshot, changed)
        if not known:
            self._reset(snapshot, memory if changed.everything else self._remembered())
        self._begin_plan()
        draft = Draft(self._lanes, self._placements)
        self._take_over(snapshot, changed.jobs if known else {*snapshot.jobs, *self._recalled})
        advanced = self._advance()
        self._lanes.reasons = {}
        more = self._lanes.decide(draft, now, self)
        self._said = dict(self._lanes.reasons)
        mark = draft.mark()
        for move in self._moves:
            self._said.update(move.propose(snapshot, draft))
        self._reasons.update(self._said)
        more = more or draft.mark() > mark
        targets = draft.changes()
        for job_id, placement in targets.items():
            self._settle(self._rows[job_id], placement)
        for row in advanced:
            if row.id not in targets and row.usage.since is not None:
                self._note(row, self._order.settle(row.job, row.usage, row.note, now, self._next()))
                self._refresh(row)
        return Plan(
            {job_id: Target(placement) for job_id, placement in targets.items()},
            self._reasons,
            Memory(self._common_changes(), self._notes),
            now if more else self._wake(),
        )

    def _reset(self, snapshot: Snapshot, memory: Memory) -> None:
        self._rows: dict[JobId, Row] = {}
        self._placements: dict[JobId, Placement] = {}
        self._timers: list[tuple[float, JobId]] = []
        self._now = snapshot.time
        self._begin_plan()
        self._recalled = dict(memory.jobs)
        """Notes of jobs that were not seen yet."""
        self._common = {key: _mapping(memory.common.get(key)) for key in ("order", "lanes")}
        self._order = self._given_order.recall(self._common["order"])
        self._lanes.reset(snapshot, self._common["lanes"])

    def _begin_plan(self) -> None:
        self._number = 0
        self._notes: dict[JobId, Note] = {}
        """Notes that this plan changes."""
        self._reasons: dict[JobId, str] = {}
        self._learned = False

    def _remembered(self) -> Memory:
        return Memory(self._common, {job_id: row.note for job_id, row in self._rows.items()})

    def _common_changes(self) -> Mapping[str, Any]:
        lanes = self._lanes.common()
        if lanes != self._common["lanes"]:
            self._common["lanes"] = lanes
            return dict(self._common)
        return dict(self._common) if self._learned else {}

    def _wake(self) -> float:
        while self._timers and self._void(*self._timers[0]):
            heappop(self._timers)
        times = [self._lanes.wake()]
        times += [self._timers[0][0]] if self._timers else []
        if self._lanes.contested:
            times.append(self._order.epoch_end(self._now))
        if self._order.polled:
            times += [self._order.until(row.job, row.usage, row.note, self._now) for row in self._running()]
        return max(self._now, min(times))

    def _void(self, time: float, job_id: JobId) -> bool:
        row = self._rows.get(job_id)
        return row is None or row.until != time

    def _running(self) -> list[Row]:
        return [row for row in self._rows.values() if row.usage.since is not None]

    # -- taking over what was observed ----------------------------------------------------------------

    def _take_over(self, snapshot: Snapshot, ids: Iterable[JobId]) -> None:
        came: list[Row] = []
        for job_id in sorted(ids):
            job, row = snapshot.jobs.get(job_id), self._rows.get(job_id)
            if row is not None:
                self._leave(row)
            note = self._order.read(self._recalled.pop(job_id, None))
            if job is None:
                if row is not None:
                    self._gone(row)
                    note = row.note
                if note is not None:
                    self._notes[job_id] = None
                    self._learn(snapshot.usage_of(job_id))
                continue
            if row is None:
                row = self._rows[job_id] = Row(job, snapshot.usage_of(job_id), note=note)
            row.job, row.usage, row.profile = job, snapshot.usage_of(job_id), snapshot.profile_of(job_id)
            self._lanes.know(row)
            self._hold(job_id, self._lanes.held(job))
            if row.note is None:
                came.append(row)
            else:
                self._note(row, self._order.seen(job, row.usage, row.note, self._now))
                self._enter(row)
        if self._learned:
            self._recall()
        for row in sorted(came, key=lambda r: (r.job.submit_time, r.id)):
            if self._lanes.notes_on_arrival:
                self.begin(row, ())
            self._enter(row)

    def _gone(self, row: Row) -> None:
        self._hold(row.id, NOWHERE)
        self._lanes.forget(row)
        del self._rows[row.id]

    def _learn(self, usage: Usage) -> None:
        """A job with this usage ended."""
        common = self._order.ended(self._common["order"], usage, self._now)
        if common is not self._common["order"]:
            self._common["order"], self._learned = common, True

    def _recall(self) -> None:
        """The order may have learned: then all keys are others."""
        order = self._order.recall(self._common["order"])
        if order is not self._order:
            self._order = order
            for row in self._rows.values():
                if row.note is not None or not self._lanes.notes_on_arrival:
                    self._refresh(row)

    def _hold(self, job_id: JobId, placement: Placement) -> None:
        before = self._placements.get(job_id, NOWHERE)
        if before != placement:
            self._lanes.change(job_id, before, placement)
            if placement == NOWHERE:
                del self._placements[job_id]
            else:
                self._placements[job_id] = placement

    def _standing(self, row: Row) -> Standing:
        job = row.job
        if job.leaving:
            return ASIDE
        if not job.placement.gpus:
            return WAITING if job.may_start else ASIDE
        if job.placement.guest(job.id):
            return FIXED
        if not (job.may_stop and self._preempt) or self._lanes.kept_until(job) > self._now + _TINY:
            return FIXED
        return RUNNING

    def _enter(self, row: Row) -> None:
        row.standing = self._standing(row)
        row.key = self.key(row)
        row.until = self._lanes.enter(row, self._now)
        if row.standing is WAITING and row.note is not None:
            self._reasons[row.id] = self._words(row)
        if row.standing is ASIDE:
            if row.job.held_until is not None and row.job.held_until > self._now:
                row.until = row.job.held_until
        elif not (self._order.polled and row.usage.since is not None):
            row.until = min(row.until, self._order.until(row.job, row.usage, row.note, self._now))
        kept_until = self._lanes.kept_until(row.job)
        if row.standing is FIXED and kept_until > self._now:
            row.until = min(row.until, kept_until)
        if row.until < math.inf:
            heappush(self._timers, (row.until, row.id))

    def _leave(self, row: Row) -> None:
        self._lanes.leave(row)
        row.until = math.inf

    def _refresh(self, row: Row) -> None:
        self._leave(row)
        self._enter(row)

    def _words(self, row: Row) -> str:
        return self._order.words(row.job, row.usage, row.note)

    # -- notes ----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note(self, row: Row, note: Note) -> None:
        if note != row.note:
            row.note = self._notes[row.id] = note

    def _advance(self) -> list[Row]:
        """Jobs whose time has come: their notes or standings change."""
        now, due = self._now, list[Row]()
        while self._timers and self._timers[0][0] <= now + _TINY:
            time, job_id = heappop(self._timers)
            if not self._void(time, job_id):
                due.append(self._rows[job_id])
        if self._order.polled:
            due += [
                row
                for row in self._running()
                if self._order.until(row.job, row.usage, row.note, now) <= now + _TINY
            ]
        advanced: list[Row] = []
        for row in sorted(due, key=lambda r: (r.job.submit_time, r.id)):
            self._leave(row)
            if row.standing is not ASIDE:
                until = self._order.until(row.job, row.usage, row.note, now)
                if until <= now + _TINY:
                    number = self._next()
                    self._note(row, self._order.advance(row.job, row.usage, row.note, now, number))
                    advanced.append(row)
            self._enter(row)
        return advanced

    def _settle(self, row: Row, placement: Placement) -> None:
        """The plan gives this to a job: it starts, stops, or is bound. It will be observed before it is
        decided about again, so the lanes need not know."""
        usage, runs = row.usage, bool(placement.gpus)
        if runs == (usage.since is not None):
            return
        after = usage.started(self._now, len(placement.gpus)) if runs else usage.stopped(self._now)
        self._note(row, self._order.settle(row.job, after, row.note, self._now, self._next()))
        said = self._said.get(row.id)
        if runs:
            self._reasons[row.id] = said or "its turn, and the GPUs are free"
        else:
            words = self._order.words(row.job, after, row.note)
            self._reasons[row.id] = said or f"stops for jobs before it: {words}"

    # -- what lanes ask -------------------------------------------------------------------------------

    @property
    def epoch(self) -> float:
        """Of the order, by now."""
        return self._order.epoch(self._now)

    def key(self, row: Row) -> Key:
        """Higher classes first, then by the order."""
        rank = self._order.rank(row.job, row.usage, row.note, self._now)
        return (-row.job.priority_class, *rank, row.id)

    def begin(self, row: Row, peers: Sequence[Row]) -> None:
        """A note for a job that came among these."""
        among = [(peer.job, peer.usage, peer.note) for peer in peers]
        self._note(row, self._order.enter(row.job, row.usage, self._now, self._next(), among))


def _mapping(raw: object) -> Mapping[str, Any]:
    """A part of a memory, which may be damaged."""
    return raw if isinstance(raw, Mapping) else {}
