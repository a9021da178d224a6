# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation as one problem: all of its formulation is done where it is solved, so that the loop does not
wait for it."""

from __future__ import annotations

from typing import Any

from controller.model import JobId
from controller.model.solving import Problem, ProblemKind, Solution
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import AllocationError, Asked, Fractions, Given
from controller.policies.allocations.check import check_answer
from controller.policies.allocations.settings import SETTINGS
from controller.settings.base import Section

DEADLINE_SECONDS = 30.0
"""Of an allocation whose settings have none."""


class AsProblem:
    """States one allocation. `worker.solve` answers."""

    def __init__(self, name: str, settings: Section) -> None:
        """`settings`: with those of the allocation of this name among them."""
        own = set(SETTINGS[name].model_fields)
        self._name, self._settings = name, settings.model_dump(mode="json", include=own)
        self._deadline_seconds = float(self._settings.get("deadline_seconds", DEADLINE_SECONDS))

    def begin(self, given: Given) -> Asked:
        """Its solution has the fractions of all jobs, then of all pairs, by type."""
        keys: list[Any] = [*((job.id,) for job in given.jobs), *(pair.jobs for pair in given.pairs)]
        data = {
            "allocation": self._name,
            "settings": self._settings,
            "given": given_data.dump(given),
            "variables": len(keys) * len(given.types),
        }
        subject = [list(given.types), keys]
        return Asked(Problem(ProblemKind.ALLOCATION, data, self._deadline_seconds, subject))

    def read(self, solution: Solution) -> Fractions:
        """Of the problem that was stated last. Raises AllocationError."""
        types, keys = solution.subject
        values = solution.values
        check_answer((solution.status, values, solution.error), len(keys) * len(types))
        if values and not 0 <= min(values) <= max(values) <= 1:
            raise AllocationError(f"the solver answered fractions from {min(values):g} to {max(values):g}")
        width = len(types)
        return {
            tuple(map(JobId, jobs)): dict(zip(types, values[first : first + width], strict=True))
            for jobs, first in zip(keys, range(0, len(values), width), strict=True)
        }
