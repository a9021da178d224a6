# SPDX-License-Identifier: GPL-2.0-or-later
"""First come, first served. Source: Slurm's `sched/builtin`; SPEC 2.6 `fifo`, `fjf`."""

from __future__ import annotations

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Rank


class Fifo(Order):
    """By submission."""

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return (job.submit_time,)
