# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves problems with HiGHS and Clarabel. Runs in the worker process, or at once on virtual time."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from controller.model.solving import Cone, ProblemKind, SolutionStatus

Found = tuple[SolutionStatus, list[float], str]
"""Status, values, and what failed."""


def answer(request: bytes) -> bytes:
    """The answer to an encoded problem; whatever goes wrong is told in it."""
    began = time.monotonic()
    try:
        kind, data, _ = marshal.loads(request)
        status, values, error = _SOLVERS[ProblemKind(kind)](data)
    except ImportError as missing:
        status, values = SolutionStatus.FAILED, []
        error = f"this needs the Python module {missing.name}, which is not installed"
    except Exception as wrong:  # a problem that is stated wrongly must not end the process
        status, values, error = SolutionStatus.FAILED, [], f"{type(wrong).__name__}: {wrong}"
    return marshal.dumps((status.value, values, time.monotonic() - began, error))


def _matrix(data: Mapping[str, Any]) -> sparse.csc_array:
    shape = (len(data["limits"]), len(data["cost"]))
    entries = np.asarray(data["values"], float)
    matrix = sparse.csc_array((entries, (data["rows"], data["columns"])), shape=shape)
    matrix.eliminate_zeros()
    return matrix


def _linear(data: Mapping[str, Any]) -> Found:
    """By HiGHS: interior point without crossover, so that the optimum is none of the corners."""
    import highspy

    matrix = _matrix(data)
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
    for option, choice in (("output_flag", False), ("solver", "ipm"), ("run_crossover", "off")):
        highs.setOptionValue(option, choice)
    highs.passModel(model)
    highs.run()
    found = highs.getModelStatus()
    statuses = {
        highspy.HighsModelStatus.kOptimal: SolutionStatus.OPTIMAL,
        highspy.HighsModelStatus.kInfeasible: SolutionStatus.INFEASIBLE,
        highspy.HighsModelStatus.kUnbounded: SolutionStatus.UNBOUNDED,
    }
    status = statuses.get(found, SolutionStatus.FAILED)
    if status is SolutionStatus.OPTIMAL:
        return status, list(map(float, highs.getSolution().col_value)), ""
    return status, [], f"HiGHS: {highs.modelStatusToString(found)}" if status is SolutionStatus.FAILED else ""


def _conic(data: Mapping[str, Any]) -> Found:
    """By Clarabel."""
    import clarabel

    matrix = _matrix(data)
    columns = matrix.shape[1]
    cones = {
        Cone.ZERO: clarabel.ZeroConeT,
        Cone.NONNEGATIVE: clarabel.NonnegativeConeT,
        Cone.SECOND_ORDER: clarabel.SecondOrderConeT,
        Cone.EXPONENTIAL: lambda _rows: clarabel.ExponentialConeT(),
    }
    settings = clarabel.DefaultSettings()
    settings.verbose = False
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
        (ours for theirs, ours in statuses.items() if theirs == found.status), SolutionStatus.FAILED
    )
    if status in (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE):
        return status, list(map(float, found.x)), ""
    return status, [], f"Clarabel: {found.status}" if status is SolutionStatus.FAILED else ""


_SOLVERS: Mapping[ProblemKind, Callable[[Mapping[str, Any]], Found]] = {
    ProblemKind.LINEAR: _linear,
    ProblemKind.CONIC: _conic,
}
