# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation with all that it asks, in one call."""

from __future__ import annotations

from controller.policies.allocations.allocation import Allocated, Allocation, AllocationError, Given
from controller.solver.port import SolverPort

MOST_PROBLEMS = 100_000
"""An allocation that asks for more does not end."""


def allocate(allocation: Allocation, given: Given, solver: SolverPort) -> Allocated:
    """The answer.

    Args:
        solver: one that solves at once.

    Raises:
        AllocationError: there is none.
    """
    step = allocation.begin(given)
    for _ in range(MOST_PROBLEMS):
        if isinstance(step, Allocated):
            return step
        solver.submit("allocation", step.problem, lambda: None)
        solutions = solver.take()
        if "allocation" not in solutions:
            raise AllocationError("the allocation asks for the same problem again")
        step = allocation.go_on(given, step.memory, solutions["allocation"])
    raise AllocationError(f"the allocation asks for more than {MOST_PROBLEMS} problems")
