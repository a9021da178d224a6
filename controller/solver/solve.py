# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves problems with HiGHS and Clarabel. Runs in the worker process, or at once on virtual time."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from controller.model.solving import ProblemKind, SolutionStatus
from controller.solver.conic import solve_conic
from controller.solver.linear import solve_linear, solve_vertex
from controller.solver.problem_data import Found

Solve: TypeAlias = Callable[[Mapping[str, Any]], Found]
"""From the data of a problem."""
NO_OTHERS: Mapping[ProblemKind, Solve] = {}


def find(
    kind: ProblemKind, data: Mapping[str, Any], others: Mapping[ProblemKind, Solve] = NO_OTHERS
) -> Found:
    """The solution of one problem; whatever goes wrong is told in it. Where its solver finds no optimum, and
    does not say that there is no solution, the other solvers are asked, and the best answer counts.

    Args:
        others: for kinds of problems that are not the solvers' own.
    """
    best = _found(kind, data, others)
    for instead in _INSTEAD.get(kind, ()):
        if best[0] in (SolutionStatus.OPTIMAL, SolutionStatus.INFEASIBLE, SolutionStatus.FAILED):
            break
        best = min(best, _found(instead, data, others), key=lambda found: _RANKS.index(found[0]))
    return best


def _found(kind: ProblemKind, data: Mapping[str, Any], others: Mapping[ProblemKind, Solve]) -> Found:
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
}
_INSTEAD: Mapping[ProblemKind, Sequence[ProblemKind]] = {
    ProblemKind.LINEAR: (ProblemKind.CONIC, ProblemKind.VERTEX),
    ProblemKind.CONIC: (ProblemKind.LINEAR, ProblemKind.VERTEX),
}
"""Who else takes a problem; one with cones that a solver does not take has failed there."""
_RANKS = tuple(SolutionStatus)
