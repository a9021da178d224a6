# SPDX-License-Identifier: GPL-2.0-or-later
"""The least makespan."""

from __future__ import annotations

import numpy as np

from controller.model.solving import Cone, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Given, Solve
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Array, Layout, single
from controller.policies.allocations.settings import GavelMakespanSettings
from controller.policies.allocations.shares import fixed, isolated
from controller.policies.allocations.solving import asked, none_can_run, seconds_left, seen
from controller.policies.allocations.together import together
from controller.solver.program import Program

LOW_SECONDS, HIGH_SECONDS = 100.0, 1e6
"""Where the bisection of Gavel's code begins."""
MOST_SECONDS = 1e12
"""Where it is given up."""


class Makespan:
    """Minimises the time until the last job ends, at constant throughputs. One linear problem; Gavel's code
    bisects instead, and stops within 5 %."""

    def __init__(self, settings: GavelMakespanSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = seen(
            given,
            self._settings,
            exact=self._exact,
            pairs=self._settings.space_sharing,
            agnostic_type=self._settings.agnostic_type,
        )
        if not layout.jobs:
            return none_can_run(given)
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not left.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        if not self._exact:
            x = valid(layout, self._bisected(layout, left, solve))
            return self._allocated(layout, left, x, "within 5 %")
        x, _, status = together(layout, layout.rate, left * layout.fastest, solve, self._settings)
        return self._allocated(layout, left, x, status)

    def _allocated(self, layout: Layout, left: Array, x: Array, status: str) -> Allocated:
        """The objective is the makespan, in seconds."""
        speeds, some = layout.by_job(x) / layout.fastest, left > 0
        if (speeds[some] <= 0).any():
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = float((left[some] / speeds[some]).max())
        return Allocated(fractions=fractions(layout, x), objective=most, status=status)

    def _bisected(self, layout: Layout, left: Array, solve: Solve) -> Array:
        """The last X with which all jobs end in time."""
        low, high, last, x = LOW_SECONDS, HIGH_SECONDS, HIGH_SECONDS, None
        while True:
            middle = (low + high) / 2.0
            found = asked(solve, self._settings, self._within(layout, left, middle))
            if found[0] is SolutionStatus.OPTIMAL:
                high, x = middle, solved(found, layout.size)
            else:
                low = middle
            if 1.05 * low < high:
                continue
            if x is not None:
                return x
            if last > MOST_SECONDS:
                raise AllocationError("the jobs do not end within any time (infeasible)")
            low, high, last = last, last * 10.0, last * 10.0

    def _within(self, layout: Layout, left: Array, seconds: float) -> Program:
        """Can all jobs end within this time?"""
        known = layout.of_jobs("steps_left")
        steps = np.where(np.isnan(known), left * layout.fastest, known)
        program = Program()
        program.variables(layout.size)
        layout.add_validity(program, 0)
        rates = single(layout.rate) if self._settings.space_sharing else layout.rate
        program.block(Cone.NONNEGATIVE, -steps / seconds, layout.terms(0, -rates))
        return program
