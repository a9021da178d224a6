# SPDX-License-Identifier: GPL-2.0-or-later
"""Orders that remember nothing of jobs: by submission, size, remaining time, and attained service."""

import math

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Rank


class Fifo(Order):
    """First come, first served. Source: Slurm's `sched/builtin`; SPEC 2.6 `fifo`, `fjf`."""

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return (job.submit_time,)


class Smallest(Order):
    """Fewest GPUs first, then by submission. Source: `sjf` of the Tiresias simulator, SPEC 2.6."""

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return (job.gpus, job.submit_time)


class Remaining(Order):
    """Shortest remaining time (SRTF) or service (SRSF) first; unknown durations come last. Source: SPEC
    2.2, 2.6."""

    epoch_seconds = 0.0

    def __init__(self, *, service: bool = False) -> None:
        """`service`: remaining time times GPUs."""
        self._service = service

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        duration = job.request.duration_seconds
        left = math.inf if duration is None else max(0.0, duration - usage.ran(now))
        # Rounded: the same time from scratch and from a kept usage differs in the last bits.
        return (round(left * job.gpus if self._service else left, 6), job.submit_time)


class Continuous(Order):
    """Least attained service without queues: the job that had the least first, at all times (SPEC 2.2)."""

    def __init__(self, *, epoch_seconds: float = 60.0, gpu_time: bool = True) -> None:
        """`gpu_time`: service is measured in GPU-seconds, else in seconds."""
        self.epoch_seconds, self._gpu_time = epoch_seconds, gpu_time

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        at = now if usage.since is None else max(usage.since, self.epoch(now))
        # Rounded, as above.
        return (round(usage.served(at) if self._gpu_time else usage.ran(at), 6), job.submit_time)
