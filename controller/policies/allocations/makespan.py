# SPDX-License-Identifier: GPL-2.0-or-later
"""The least makespan."""

from __future__ import annotations

from controller.policies.allocations.allocation import Allocated, AllocationError, Given, Solve
from controller.policies.allocations.checked import fractions
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import GavelMakespanSettings
from controller.policies.allocations.shares import fixed, isolated
from controller.policies.allocations.solving import none_can_run, seconds_left, seen
from controller.policies.allocations.together import together


class Makespan:
    """Minimises the time until the last job ends, at constant throughputs. One linear problem."""

    def __init__(self, settings: GavelMakespanSettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = seen(
            given,
            self._settings,
            pairs=self._settings.space_sharing,
            agnostic_type=self._settings.agnostic_type,
        )
        if not layout.jobs:
            return none_can_run(given)
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not left.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        x, _, status = together(layout, layout.rate, left * layout.fastest, solve, self._settings)
        return self._allocated(layout, left, x, status)

    def _allocated(self, layout: Layout, left: Array, x: Array, status: str) -> Allocated:
        """The objective is the makespan, in seconds."""
        speeds, some = layout.by_job(x) / layout.fastest, left > 0
        if (speeds[some] <= 0).any():
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = float((left[some] / speeds[some]).max())
        return Allocated(fractions=fractions(layout, x), objective=most, status=status)
