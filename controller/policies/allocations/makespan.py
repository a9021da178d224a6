# SPDX-License-Identifier: GPL-2.0-or-later
"""The least makespan."""

from __future__ import annotations

from controller.policies.allocations.allocation import Allocated, AllocationError, Solve
from controller.policies.allocations.checked import fractions
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.shares import fixed, isolated
from controller.policies.allocations.solving import LaidOut, seconds_left
from controller.policies.allocations.together import together


class Makespan(LaidOut):
    """Minimises the time until the last job ends, at constant throughputs. One linear problem."""

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        """The objective is the makespan, in seconds."""
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not left.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        x, _, status = together(layout, layout.rate, left * layout.fastest, solve, self._settings)
        speeds, some = layout.by_job(x) / layout.fastest, left > 0
        if (speeds[some] <= 0).any():
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = float((left[some] / speeds[some]).max())
        return Allocated(fractions=fractions(layout, x), objective=most, status=status)
