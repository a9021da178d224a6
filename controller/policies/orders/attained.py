# SPDX-License-Identifier: GPL-2.0-or-later
"""Least attained service: Tiresias-L, in queues or continuous.

Source: Tiresias (NSDI'19), pseudocode 1, figures 8 and 9; SPEC 2.2, 2.3. A job enters queue 1, is demoted
when its attained service reaches the limit of its queue, and is promoted to queue 1 when it starves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from controller.model import Job, Note, Usage, value
from controller.policies.orders.order import Order, Peer, Rank, gpus_words, numbers

_TINY = 1e-6
"""Service below which two values count as equal: sums of floating-point times."""


class QueueNote(NamedTuple):
    """What is remembered of a job. JSON scalars only."""

    queue: int = 0
    group: int = 1
    """In its queue: 0 after its first start there, 1 before."""
    stamp: float = 0.0
    number: int = 0
    """Stamp and number: when it got its place in the queue; of equal times, the order in the plan."""
    forgiven_seconds: float = 0.0
    """Time on GPUs at its last promotion."""
    forgiven_gpu_seconds: float = 0.0
    forgiven_waiting_seconds: float = 0.0
    """Waiting that does not count for promotion any more."""
    fresh: int = 0
    """1: it entered its queue with the plan being made, while running."""


@value
class QueueRules:
    """What the settings say of queues."""

    limits: tuple[float, ...] = (3600.0,)
    """Attained service at which a job leaves each queue but the last."""
    gpu_time: bool = True
    """Service is measured in GPU-seconds, else in seconds."""
    knob: float = 8.0
    """PROMOTEKNOB: a job that waited so many times as long as it ran is promoted. 0: never."""
    by_entry: bool = False
    """Inside a queue those that run first, then by entry, as the authors' simulator has it; else by first
    start."""
    since_last_run: bool = True
    """Only waiting since the last run counts for promotion; else all since the last promotion."""
    late: bool = False
    """Demotion as in the authors' simulator: it looks with each event, takes the next look to be (limit -
    seconds on GPUs) // GPUs away, and so demotes gangs late, by one queue at most (SPEC 2.4)."""


class Queues(Order):
    """Jobs by queue of attained service, inside a queue by first start or by entry."""

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self.polled = rules.late

    def served(self, job: Job, usage: Usage, note: QueueNote, now: float) -> float:
        """Attained service since the last promotion, in the unit of the limits."""
        if self._rules.gpu_time:
            return usage.served(now) - note.forgiven_gpu_seconds
        return usage.ran(now) - note.forgiven_seconds

    def read(self, note: Note) -> Note:
        found = numbers(note)
        if len(found) != len(QueueNote._fields):
            return None
        known = QueueNote._make(found)
        return known._replace(queue=max(0, min(int(known.queue), len(self._rules.limits))))

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        queue, served = 0, self.served(job, usage, QueueNote(), now)
        while (
            not self._rules.late
            and queue < len(self._rules.limits)
            and served >= self._rules.limits[queue] - _TINY
        ):
            queue += 1
        started = job.start_time is not None and not self._rules.by_entry
        return QueueNote(queue, 0 if started else 1, (job.start_time or now) if started else now, i)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        known = known_note(note)
        if not self._rules.by_entry:
            return (known.queue, known.stamp if known.group == 0 else math.inf, job.submit_time)
        waits = 1 if usage.since is None or known.fresh else 0
        return (known.queue, waits, known.group, known.stamp, known.number)

    def until(self, job: Job, usage: Usage, note: Note, now: float) -> float:
        known = known_note(note)
        if usage.since is not None:
            if known.queue >= len(self._rules.limits):
                return math.inf
            left = self._rules.limits[known.queue] - self.served(job, usage, known, usage.since)
            if self._rules.late:
                return self._late_look(job, usage, known, now)
            return usage.since + max(0.0, left) / (job.gpus if self._rules.gpu_time else 1)
        ran = usage.seconds - known.forgiven_seconds
        if self._rules.knob and known.queue and ran > 0 and usage.idle_since is not None:
            waited = usage.waited_seconds - known.forgiven_waiting_seconds
            return usage.idle_since + max(0.0, self._rules.knob * ran - waited)
        return math.inf

    def _late_look(self, job: Job, usage: Usage, known: QueueNote, now: float) -> float:
        limit = self._rules.limits[known.queue]
        if self.served(job, usage, known, now) >= limit - _TINY:
            return now
        left = limit - (usage.ran(now) - known.forgiven_seconds)
        return now + max(0.0, math.floor(left / job.gpus + _TINY) if self._rules.gpu_time else left)

    def advance(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = known_note(note)
        if self._rules.by_entry:
            known = known._replace(group=1, stamp=now, number=i)
        if usage.since is None:
            # Starved: to queue 1, as if it had never run.
            return known._replace(
                queue=0,
                forgiven_seconds=usage.seconds,
                forgiven_gpu_seconds=usage.gpu_seconds,
                forgiven_waiting_seconds=usage.waited(now),
                fresh=0,
            )
        return known._replace(queue=known.queue + 1, fresh=1)

    def settle(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = known_note(note)
        runs = usage.since is not None
        if runs and (self._rules.since_last_run or usage.seconds == known.forgiven_seconds):
            known = known._replace(forgiven_waiting_seconds=usage.waited_seconds)
        if not self._rules.by_entry:
            stamp = now if known.group else known.stamp
            return known._replace(group=0, stamp=stamp, fresh=0) if runs else known._replace(fresh=0)
        if runs:
            return known._replace(group=0, stamp=now, number=i, fresh=0)
        if known.fresh:
            return known._replace(fresh=0)
        # Stopped: before those that wait already.
        return known._replace(group=0, stamp=-now, number=i)

    def words(self, job: Job, usage: Usage, note: Note) -> str:
        place = f"queue {known_note(note).queue + 1} of {len(self._rules.limits) + 1}"
        return f"waits in {place} for {gpus_words(job.gpus)}"


class Continuous(Queues):
    """The job with the least attained service first, at all times."""

    def __init__(self, *, every_seconds: float = 60.0, gpu_time: bool = True) -> None:
        """`every_seconds`: how often ranks are looked at while jobs wait. 0: with each plan."""
        super().__init__(QueueRules(limits=(), gpu_time=gpu_time, knob=0.0))
        self._every_seconds = every_seconds

    def epoch(self, now: float) -> float:
        return epoch_of(now, self._every_seconds)

    def epoch_end(self, now: float) -> float:
        return epoch_end_of(now, self._every_seconds)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        at = now if usage.since is None else max(usage.since, self.epoch(now))
        return (round(self.served(job, usage, known_note(note), at), 6), job.submit_time)


def epoch_of(now: float, every_seconds: float) -> float:
    """When the epoch of this moment began; with 0 each moment is one."""
    return now // every_seconds * every_seconds if every_seconds else now


def epoch_end_of(now: float, every_seconds: float) -> float:
    """When it ends by itself."""
    return epoch_of(now, every_seconds) + every_seconds if every_seconds else math.inf


def known_note(note: Note) -> QueueNote:
    """The note as it was written; a fresh one where there is none."""
    return note if isinstance(note, QueueNote) else QueueNote(*note) if note else QueueNote()
