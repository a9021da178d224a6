# SPDX-License-Identifier: GPL-2.0-or-later
"""Shortest remaining time (SRTF) or service (SRSF) first. Source: SPEC 2.2, 2.6."""

from __future__ import annotations

import math

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Rank


class Remaining(Order):
    """By what a job has left; jobs of unknown duration come last."""

    def __init__(self, *, service: bool = False) -> None:
        """`service`: remaining time times GPUs."""
        self._service = service

    def epoch(self, now: float) -> float:
        return now

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        duration = job.request.duration_seconds
        left = math.inf if duration is None else max(0.0, duration - usage.ran(now))
        # Rounded: the same time from scratch and from a kept usage differs in the last bits.
        return (round(left * job.gpus if self._service else left, 6), job.submit_time)
