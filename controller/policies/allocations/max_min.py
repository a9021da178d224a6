# SPDX-License-Identifier: GPL-2.0-or-later
"""Max-min fairness over heterogeneous GPUs (Gavel's LAS)."""

from __future__ import annotations

import numpy as np

from controller.policies.allocations.allocation import Allocated, Solve
from controller.policies.allocations.checked import fractions
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.shares import equal_throughputs
from controller.policies.allocations.solving import LaidOut
from controller.policies.allocations.together import together


class MaxMin(LaidOut):
    """Maximises the least share. A job's share is its effective throughput relative to that of an equal split
    of all types, times its GPUs, divided by its weight."""

    ones = True

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        weight, gpus = layout.of_jobs("weight")[layout.job], layout.of_jobs("gpus")[layout.job]
        equal = equal_throughputs(layout)[layout.job]
        shares: Array = (layout.rate * ((1.0 / weight) * (1.0 / equal))) * gpus
        x, _, status = together(layout, shares, np.ones(len(layout.jobs)), solve, self._settings)
        objective = float(layout.by_job(x, shares).min())
        return Allocated(fractions=fractions(layout, x), objective=objective, status=status)
