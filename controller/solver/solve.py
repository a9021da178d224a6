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


def find(
    kind: ProblemKind, data: Mapping[str, Any], others: Mapping[ProblemKind, Solve] = NO_OTHERS
) -> Found:
    """The solution of one problem; whatever goes wrong is told in it.

    Args:
        others: for kinds of problems that are not the solvers' own.
    """
    try:
        return {**_SOLVERS, **others}[kind](data)
    except ImportError as missing:
        why = f"this needs the Python module {missing.name}, which is not installed"
    except Exception as wrong:  # a problem that is stated wrongly must not end the process
        why = f"{type(wrong).__name__}: {wrong}"
    return SolutionStatus.FAILED, [], why


def answer(request: bytes, others: Mapping[ProblemKind, Solve] = NO_OTHERS) -> bytes:
    """The answer to an encoded problem. `others`: as for `find`."""
    began = time.monotonic()
    kind, data, _ = marshal.loads(request)
    status, values, error = find(ProblemKind(kind), data, others)
    return marshal.dumps((status.value, list(values), time.monotonic() - began, error))


_SOLVERS: Mapping[ProblemKind, Solve] = {
    ProblemKind.LINEAR: solve_linear,
    ProblemKind.VERTEX: solve_vertex,
    ProblemKind.CONIC: solve_conic,
    ProblemKind.ECOS: solve_ecos,
    ProblemKind.QUEUES: solve_queues,
}
