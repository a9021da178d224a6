# SPDX-License-Identifier: GPL-2.0-or-later
"""Who solves the problems of a way: ECOS as in Gavel, or the product's solvers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.fidelity.gavel_ways.ecos import solve_ecos
from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations.allocation import AllocationError, Solve
from controller.solver.problem_data import Found
from controller.solver.solve import find

_KINDS = {"clarabel": ProblemKind.CONIC, "highs": ProblemKind.LINEAR}


def solver(name: str) -> Solve:
    """Solves problems of all kinds with this solver, but for those whose answer must be a corner."""

    def solve(kind: ProblemKind, data: Mapping[str, Any]) -> Found:
        if kind is ProblemKind.VERTEX:
            return find(kind, data)
        found = solve_ecos(data) if name == "ecos" else find(_KINDS[name], data)
        if found[0] is SolutionStatus.FAILED:
            raise AllocationError(f"the solver failed: {found[2]}")
        return found

    return solve


def least_queues(seconds: Sequence[Sequence[float]], delays: Sequence[float]) -> list[int]:
    """The places with the least sum of completion times, by job: machine + machines * (place from the end of
    its queue). Costs are summed in the order of AlloX's code in Gavel, so that the same one of equal optima
    is found.

    Args:
        seconds: of each job on each machine.
        delays: of each job until now.
    """
    from scipy.optimize import linear_sum_assignment

    times = np.asarray(seconds, float)
    costs = np.concatenate([place * times for place in range(1, len(times) + 1)], axis=1)
    _, places = linear_sum_assignment(costs + np.asarray(delays, float).reshape(len(times), 1))
    return [int(place) for place in places]
