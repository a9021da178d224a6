# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves problems with HiGHS, Clarabel, ECOS and SciPy. Runs in the worker process, or at once on virtual
time."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from controller.model.solving import ProblemKind, SolutionStatus
from controller.solver.conic import solve_conic
from controller.solver.ecos import solve_ecos
from controller.solver.linear import solve_linear, solve_vertex
from controller.solver.problem_data import Found
from controller.solver.queues import solve_queues

Solve: TypeAlias = Callable[[Mapping[str, Any]], Found]
"""From the data of a problem."""
NO_OTHERS: Mapping[ProblemKind, Solve] = {}


def answer(request: bytes, others: Mapping[ProblemKind, Solve] = NO_OTHERS) -> bytes:
    """The answer to an encoded problem; whatever goes wrong is told in it.

    Args:
        others: for kinds of problems that are not the solvers' own.
    """
    began = time.monotonic()
    try:
        kind, data, _ = marshal.loads(request)
        status, values, error = {**_SOLVERS, **others}[ProblemKind(kind)](data)
    except ImportError as missing:
        status, values = SolutionStatus.FAILED, []
        error = f"this needs the Python module {missing.name}, which is not installed"
    except Exception as wrong:  # a problem that is stated wrongly must not end the process
        status, values, error = SolutionStatus.FAILED, [], f"{type(wrong).__name__}: {wrong}"
    return marshal.dumps((status.value, values, time.monotonic() - began, error))


_SOLVERS: Mapping[ProblemKind, Solve] = {
    ProblemKind.LINEAR: solve_linear,
    ProblemKind.VERTEX: solve_vertex,
    ProblemKind.CONIC: solve_conic,
    ProblemKind.ECOS: solve_ecos,
    ProblemKind.QUEUES: solve_queues,
}
