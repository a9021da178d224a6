# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues of attained service: limits, what is remembered of a job, and when it is demoted (SPEC 2.2-2.4)."""

from __future__ import annotations

import math
from typing import NamedTuple

from controller.model import Job, Note, Usage, value
from controller.policies.orders.order import numbers

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

    def read(self, raw: Note) -> QueueNote | None:
        """A note out of the journal; None where it is damaged. A queue beyond the last one is the last."""
        found = numbers(raw)
        if len(found) != len(QueueNote._fields):
            return None
        note = QueueNote._make(found)
        return note._replace(queue=max(0, min(int(note.queue), len(self.limits))))

    def served(self, usage: Usage, note: QueueNote, now: float) -> float:
        """Attained service since the last promotion, in the unit of the limits."""
        if self.gpu_time:
            return usage.served(now) - note.forgiven_gpu_seconds
        return usage.ran(now) - note.forgiven_seconds

    def queue_on_arrival(self, usage: Usage, now: float) -> int:
        """By the service that it has attained already."""
        served = self.served(usage, QueueNote(), now)
        return 0 if self.late else sum(served >= limit - TINY for limit in self.limits)

    def demoted_at(self, job: Job, usage: Usage, note: QueueNote, now: float) -> float:
        """When a job that runs leaves its queue for the next one."""
        if usage.since is None or note.queue >= len(self.limits):
            return math.inf
        limit = self.limits[note.queue]
        if not self.late:
            left = max(0.0, limit - self.served(usage, note, usage.since))
            return usage.since + left / (job.gpus if self.gpu_time else 1)
        if self.served(usage, note, now) >= limit - TINY:
            return now
        left = limit - (usage.ran(now) - note.forgiven_seconds)
        return now + max(0.0, math.floor(left / job.gpus + TINY) if self.gpu_time else left)

    def promoted_at(self, usage: Usage, note: QueueNote) -> float:
        """When a job that waits goes back to the first queue."""
        ran = usage.seconds - note.forgiven_seconds
        if usage.idle_since is None or not self.knob or not note.queue or ran <= 0:
            return math.inf
        waited = usage.waited_seconds - note.forgiven_waiting_seconds
        return usage.idle_since + max(0.0, self.knob * ran - waited)
