# SPDX-License-Identifier: GPL-2.0-or-later
"""Least attained service in queues: Tiresias-L.

Source: Tiresias (NSDI'19), pseudocode 1, figures 8 and 9; SPEC 2.2, 2.3. A job enters queue 1, is demoted
when its attained service reaches the limit of its queue, and is promoted to queue 1 when it starves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Peer, Rank, gpus_words
from controller.policies.orders.queue_rules import QueueNote, QueueRules


class Queues(Order):
    """Jobs by queue of attained service, inside a queue by first start or by entry."""

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self.polled = rules.late

    def read(self, note: Note) -> Note:
        return self._rules.read(note)

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        queue = self._rules.queue_on_arrival(usage, now)
        if job.start_time is None or self._rules.by_entry:
            return QueueNote(queue, 1, now, i)
        return QueueNote(queue, 0, job.start_time, i)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        known = as_note(note)
        if not self._rules.by_entry:
            return (known.queue, known.stamp if known.group == 0 else math.inf, job.submit_time)
        waits = 1 if usage.since is None or known.fresh else 0
        return (known.queue, waits, known.group, known.stamp, known.number)

    def until(self, job: Job, usage: Usage, note: Note, now: float) -> float:
        known = as_note(note)
        if usage.since is None:
            return self._rules.promoted_at(usage, known)
        return self._rules.demoted_at(job, usage, known, now)

    def advance(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = as_note(note)
        if self._rules.by_entry:
            known = known._replace(group=1, stamp=now, number=i)
        if usage.since is not None:
            return known._replace(queue=known.queue + 1, fresh=1)
        # Starved: to queue 1, as if it had never run.
        return known._replace(
            queue=0,
            forgiven_seconds=usage.seconds,
            forgiven_gpu_seconds=usage.gpu_seconds,
            forgiven_waiting_seconds=usage.waited(now),
            fresh=0,
        )

    def settle(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = as_note(note)
        runs, fresh = usage.since is not None, known.fresh
        known = known._replace(fresh=0)
        if runs and (self._rules.since_last_run or usage.seconds == known.forgiven_seconds):
            known = known._replace(forgiven_waiting_seconds=usage.waited_seconds)
        if self._rules.by_entry:
            if runs:
                return known._replace(group=0, stamp=now, number=i)
            # Stopped: before those that wait already, but behind them if it entered the queue just now.
            return known if fresh else known._replace(group=0, stamp=-now, number=i)
        return known._replace(group=0, stamp=now if known.group else known.stamp) if runs else known

    def words(self, job: Job, usage: Usage, note: Note, now: float) -> str:
        place = f"queue {as_note(note).queue + 1} of {len(self._rules.limits) + 1}"
        return f"waits in {place} for {gpus_words(job.gpus)}"


def as_note(note: Note) -> QueueNote:
    """The note that this order made."""
    return note if isinstance(note, QueueNote) else QueueNote()
