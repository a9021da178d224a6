# SPDX-License-Identifier: GPL-2.0-or-later
"""Fewest GPUs first. Source: `sjf` of the Tiresias simulator, SPEC 2.6."""

from __future__ import annotations

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Rank


class Smallest(Order):
    """By the size of the gang, then by submission."""

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return (job.gpus, job.submit_time)
