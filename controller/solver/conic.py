# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems with cones, by Clarabel."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from controller.model.solving import Cone, SolutionStatus
from controller.solver.problem_data import Found, answered, matrix_of


def solve_conic(data: Mapping[str, Any]) -> Found:
    """The solution, also where Clarabel calls it inaccurate."""
    import clarabel

    matrix = matrix_of(data)
    columns = matrix.shape[1]
    cones = {
        Cone.ZERO: clarabel.ZeroConeT,
        Cone.NONNEGATIVE: clarabel.NonnegativeConeT,
        Cone.SECOND_ORDER: clarabel.SecondOrderConeT,
        Cone.EXPONENTIAL: lambda _rows: clarabel.ExponentialConeT(),
    }
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1  # With more, the last digits of an answer depend on the number of cores.
    solver = clarabel.DefaultSolver(
        sparse.csc_array((columns, columns)),
        np.asarray(data["cost"], float),
        matrix,
        np.asarray(data["limits"], float),
        [cones[Cone(cone)](count) for cone, count in data["cones"]],
        settings,
    )
    found = solver.solve()
    statuses = {
        clarabel.SolverStatus.Solved: SolutionStatus.OPTIMAL,
        clarabel.SolverStatus.AlmostSolved: SolutionStatus.INACCURATE,
        clarabel.SolverStatus.PrimalInfeasible: SolutionStatus.INFEASIBLE,
        clarabel.SolverStatus.AlmostPrimalInfeasible: SolutionStatus.INFEASIBLE,
        clarabel.SolverStatus.DualInfeasible: SolutionStatus.UNBOUNDED,
        clarabel.SolverStatus.AlmostDualInfeasible: SolutionStatus.UNBOUNDED,
    }
    status = next(
        (ours for theirs, ours in statuses.items() if theirs == found.status), SolutionStatus.UNSOLVED
    )
    return answered(status, found.x, f"Clarabel: {found.status}")
