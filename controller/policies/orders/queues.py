# SPDX-License-Identifier: GPL-2.0-or-later
"""Least attained service in queues: Tiresias-L.

Source: Tiresias (NSDI'19), pseudocode 1, figures 8 and 9; SPEC 2.2-2.4. A job enters queue 1, is demoted when
its attained service reaches the limit of its queue, and is promoted to queue 1 when it starves.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Peer, Rank, gpus_words, numbers
from controller.policies.settings import QueueSettings

TINY = 1e-6
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
    """Waiting that does not count for promotion any more, with since-promotion."""
    fresh: int = 0
    """1: it entered its queue while running, for the decision being made. 0 in the order of start times."""


class Queues(Order):
    """Jobs by queue of attained service, inside a queue by first start or by entry."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings, self._limits = settings, settings.queue_limits
        self._gpu_time = settings.service == "gpu-seconds"
        self._by_entry = settings.order == "queue-entry"
        self._since_last_run = settings.promote_waiting == "since-last-run"
        self.polled = settings.demotion == "at-events"

    def read(self, note: Note) -> Note:
        found = numbers(note)
        if len(found) != len(QueueNote._fields):
            return None
        known = QueueNote._make(found)
        return known._replace(queue=max(0, min(int(known.queue), len(self._limits))))

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        served = self.served(usage, QueueNote(), now)
        queue = 0 if self.polled else sum(served >= limit - TINY for limit in self._limits)
        if job.start_time is None or self._by_entry:
            return QueueNote(queue, 1, now, i)
        return QueueNote(queue, 0, job.start_time, i)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        known = as_note(note)
        if not self._by_entry:
            return (known.queue, known.stamp if known.group == 0 else math.inf, job.submit_time)
        waits = 1 if usage.since is None or known.fresh else 0
        return (known.queue, waits, known.group, known.stamp, known.number)

    def until(self, job: Job, usage: Usage, note: Note, now: float) -> float:
        known = as_note(note)
        if usage.since is None:
            return self._promoted_at(usage, known)
        return self._demoted_at(job, usage, usage.since, known, now)

    def advance(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = as_note(note)
        if self._by_entry:
            known = known._replace(group=1, stamp=now, number=i, fresh=1)
        if usage.since is not None:
            return known._replace(queue=known.queue + 1)
        # Starved: to queue 1, as if it had never run.
        return known._replace(
            queue=0,
            forgiven_seconds=usage.seconds,
            forgiven_gpu_seconds=usage.gpu_seconds,
            forgiven_waiting_seconds=usage.waited(now),
            fresh=0,
        )

    def unsettled(self, note: Note) -> bool:
        return bool(as_note(note).fresh)

    def settle(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        known = as_note(note)
        runs, fresh = usage.since is not None, known.fresh
        known = known._replace(fresh=0)
        if runs and usage.seconds == known.forgiven_seconds:
            known = known._replace(forgiven_waiting_seconds=usage.waited_seconds)
        if self._by_entry:
            if runs:
                return known._replace(group=0, stamp=now, number=i)
            # Stopped: before those that wait already, but behind them if it entered the queue just now.
            return known if fresh else known._replace(group=0, stamp=-now, number=i)
        return known._replace(group=0, stamp=now if known.group else known.stamp) if runs else known

    def words(self, job: Job, usage: Usage, note: Note, now: float) -> str:
        place = f"queue {as_note(note).queue + 1} of {len(self._limits) + 1}"
        return f"waits in {place} for {gpus_words(job.gpus)}"

    def served(self, usage: Usage, note: QueueNote, now: float) -> float:
        """Attained service since the last promotion, in the unit of the limits."""
        if self._gpu_time:
            return usage.served(now) - note.forgiven_gpu_seconds
        return usage.ran(now) - note.forgiven_seconds

    def _demoted_at(self, job: Job, usage: Usage, since: float, note: QueueNote, now: float) -> float:
        """When a job that runs leaves its queue for the next one."""
        if note.queue >= len(self._limits):
            return math.inf
        limit = self._limits[note.queue]
        if not self.polled:
            left = max(0.0, limit - self.served(usage, note, since))
            return since + left / (job.gpus if self._gpu_time else 1)
        # The authors' simulator takes the next look to be (limit - seconds on GPUs) // GPUs away.
        if self.served(usage, note, now) >= limit - TINY:
            return now
        left = limit - (usage.ran(now) - note.forgiven_seconds)
        return now + max(0.0, math.floor(left / job.gpus + TINY) if self._gpu_time else left)

    def _promoted_at(self, usage: Usage, note: QueueNote) -> float:
        """When a job that waits goes back to the first queue."""
        ran, knob = usage.seconds - note.forgiven_seconds, self._settings.promote_knob_ratio
        if usage.idle_since is None or not knob or not note.queue or ran <= 0:
            return math.inf
        earlier = 0.0 if self._since_last_run else usage.waited_seconds - note.forgiven_waiting_seconds
        return usage.idle_since + max(0.0, knob * ran - earlier)


def as_note(note: Note) -> QueueNote:
    """The note that this order made."""
    return note if isinstance(note, QueueNote) else QueueNote()
