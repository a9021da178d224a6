# SPDX-License-Identifier: GPL-2.0-or-later
"""Linear problems, by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from controller.model.solving import Cone, SolutionStatus
from controller.solver.problem_data import Found, answered, matrix_of

_TOLERANCES = ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "ipm_optimality_tolerance")
ITERATIONS = 300
"""Of an interior point: ten times what problems take. Some have no end."""


def solve_linear(data: Mapping[str, Any]) -> Found:
    """Interior point without crossover: seldom a corner, but not central as Clarabel. Presolve finds corners
    itself, and without crossover HiGHS cannot always go back from what it made of the problem."""
    return _solve(data, solver="ipm", run_crossover="off", presolve="off", **dict.fromkeys(_TOLERANCES, 1e-9))


def solve_vertex(data: Mapping[str, Any]) -> Found:
    """Simplex, so that the optimum is a corner."""
    return _solve(data, solver="simplex")


def _solve(data: Mapping[str, Any], **options: Any) -> Found:
    import highspy

    matrix = matrix_of(data)
    rows, columns = matrix.shape
    upper = np.asarray(data["limits"], float)
    lower = np.full(rows, -np.inf)
    first = 0
    for cone, count in data["cones"]:
        if Cone(cone) is Cone.ZERO:
            lower[first : first + count] = upper[first : first + count]
        elif Cone(cone) is not Cone.NONNEGATIVE:
            raise ValueError(f"a linear problem has no cone {cone!r}")
        first += count
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = np.asarray(data["cost"], float)
    model.col_lower_, model.col_upper_ = np.full(columns, -np.inf), np.full(columns, np.inf)
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
    model.a_matrix_.value_ = matrix.data
    highs = highspy.Highs()
    options |= {"ipm_iteration_limit": ITERATIONS, "simplex_iteration_limit": 100 * (rows + columns)}
    for option, choice in {"output_flag": False, **options}.items():
        highs.setOptionValue(option, choice)
    highs.passModel(model)
    highs.run()
    found, info = highs.getModelStatus(), highs.getInfo()
    statuses = {
        highspy.HighsModelStatus.kOptimal: SolutionStatus.OPTIMAL,
        highspy.HighsModelStatus.kInfeasible: SolutionStatus.INFEASIBLE,
        highspy.HighsModelStatus.kUnbounded: SolutionStatus.UNBOUNDED,
    }
    status = statuses.get(found, SolutionStatus.UNSOLVED)
    # HiGHS calls an interior point optimal that came to a halt at 1e-6. Older releases do not tell.
    if status is SolutionStatus.OPTIMAL and getattr(info, "primal_dual_objective_error", 0.0) > 1e-7:
        status = SolutionStatus.INACCURATE
    return answered(status, highs.getSolution().col_value, f"HiGHS: {highs.modelStatusToString(found)}")
