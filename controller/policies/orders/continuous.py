# SPDX-License-Identifier: GPL-2.0-or-later
"""Least attained service without queues: the job that had the least first, at all times (SPEC 2.2)."""

from __future__ import annotations

import math

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Rank


class Continuous(Order):
    """By attained service."""

    def __init__(self, *, every_seconds: float = 60.0, gpu_time: bool = True) -> None:
        """`every_seconds`: how often ranks of running jobs are made anew while jobs wait. 0: with each plan.
        `gpu_time`: service is measured in GPU-seconds, else in seconds."""
        self._every_seconds, self._gpu_time = every_seconds, gpu_time

    def epoch(self, now: float) -> float:
        return epoch_of(now, self._every_seconds)

    def epoch_end(self, now: float) -> float:
        return epoch_end_of(now, self._every_seconds)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        at = now if usage.since is None else max(usage.since, self.epoch(now))
        # Rounded: the same time from scratch and from a kept usage differs in the last bits.
        return (round(usage.served(at) if self._gpu_time else usage.ran(at), 6), job.submit_time)


def epoch_of(now: float, every_seconds: float) -> float:
    """When the epoch of this moment began; with 0 each moment is one."""
    return now // every_seconds * every_seconds if every_seconds else now


def epoch_end_of(now: float, every_seconds: float) -> float:
    """When it ends by itself."""
    return epoch_of(now, every_seconds) + every_seconds if every_seconds else math.inf
