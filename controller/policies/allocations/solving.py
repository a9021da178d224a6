# SPDX-License-Identifier: GPL-2.0-or-later
"""What all allocations share that state problems: how they see the jobs, and which solver they ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, AllocationJob, Given, Solve
from controller.policies.allocations.checked import as_fractions
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings
from controller.solver.program import Program

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

_KINDS = {"clarabel": ProblemKind.CONIC, "highs": ProblemKind.LINEAR}


def asked(solve: Solve, settings: AllocationSettings, program: Program) -> Found:
    """The answer of the solver that the settings name. Raises AllocationError where it could not be asked."""
    found = solve(_KINDS[settings.solver], program.arrays())
    if found[0] is SolutionStatus.FAILED:
        raise AllocationError(f"the solver failed: {found[2]}")
    return found


def none_can_run(given: Given) -> Allocated:
    """The answer where no job can run anywhere, or there is none."""
    return Allocated(
        fractions=as_fractions(given, {}),
        objective=0.0,
        status="no job can run on any type" if given.jobs else "there are no jobs",
    )


class LaidOut(ABC):
    """An allocation of the jobs that can run, as it sees them: an agnostic one takes all types for equally
    fast."""

    ones = False
    """Agnostic: one step per second everywhere, else the throughput of `agnostic_type`."""

    def __init__(self, settings: AllocationSettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = self.layout(given)
        return self.of(layout, solve) if layout.jobs else none_can_run(given)

    def layout(self, given: Given) -> Layout:
        """The jobs as they are seen."""
        alike = self._everywhere if self._settings.throughputs == "agnostic" else None
        return Layout(given, pairs=self._settings.space_sharing, alike=alike)

    def _everywhere(self, job: AllocationJob) -> float:
        if self.ones:
            return 1.0
        known = job.throughput.get(self._settings.agnostic_type, 0.0)
        return known or max(job.throughput.values(), default=0.0)

    @abstractmethod
    def of(self, layout: Layout, solve: Solve) -> Allocated:
        """The answer. Some job can run."""


def seconds_left(layout: Layout, assumed_seconds: float) -> Array:
    """Steps left of each job, in seconds on its fastest type alone.

    Args:
        assumed_seconds: for a job whose steps are not known.
    """
    steps = layout.of_jobs("steps_left")
    return np.where(np.isnan(steps), assumed_seconds, steps / layout.fastest)
