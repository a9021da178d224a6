# SPDX-License-Identifier: GPL-2.0-or-later
"""Optimisation problems that an allocation states, and their solutions. Both are plain data: a problem is
solved outside the loop, and its solution is observed in a later snapshot."""

from __future__ import annotations

import enum
import hashlib
import marshal
from collections.abc import Mapping
from typing import Any

from controller.model.value import value


class ProblemKind(str, enum.Enum):
    """Which solver a problem is for. The first three take the data that `solver.program.Program` makes."""

    LINEAR = "linear"
    """HiGHS. Cones: `zero` and `nonnegative`."""
    VERTEX = "vertex"
    """The simplex method of HiGHS: its optimum is a corner. Cones: as LINEAR."""
    CONIC = "conic"
    """Clarabel. Its optimum is central among equal ones. Cones: all of `Cone`."""
    ALLOCATION = "allocation"
    """A whole allocation, stated and solved where the solver is. Its data has the number of its values as
    `variables`, and is not that of a `Program`."""


class Cone(str, enum.Enum):
    """What the rows `limit - expression` of a block must lie in."""

    ZERO = "zero"
    """Every row is 0."""
    NONNEGATIVE = "nonnegative"
    """Every row is 0 or more."""
    SECOND_ORDER = "second-order"
    """The first row is at least the Euclidean norm of the others."""
    EXPONENTIAL = "exponential"
    """Three rows x, y, z: y·exp(x/y) <= z, y > 0."""


@value
class Problem:
    """Something to be solved: minimise `cost`·x where the rows of `data` lie in their cones."""

    kind: ProblemKind
    data: Mapping[str, Any]
    """JSON: what `solver.program.Program.arrays` makes, as lists, but for ALLOCATION."""
    deadline_seconds: float = 30.0
    """What solving may take; then it counts as failed."""
    subject: Any = None
    """JSON that says what the variables stand for. It is handed back with the solution."""
    identity: str = ""
    """Tells it from all others. Where it is not given: a digest of kind, data and subject."""

    def __post_init__(self) -> None:
        """Raises ValueError where data or subject are not made of JSON values."""
        if not self.identity:
            content = marshal.dumps((self.kind.value, dict(self.data), self.subject), 2)
            object.__setattr__(self, "identity", hashlib.sha256(content).hexdigest()[:16])

    @property
    def variables(self) -> int:
        """How many values its solution has."""
        return int(self.data["variables"]) if "variables" in self.data else len(self.data["cost"])


class SolutionStatus(str, enum.Enum):
    """What came of a problem."""

    OPTIMAL = "optimal"
    INACCURATE = "inaccurate"
    """Close to an optimum; the solver does not vouch for all digits."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    UNSOLVED = "unsolved"
    """The solver gave up, such as after too many iterations: `error` says why."""
    FAILED = "failed"
    """The solver could not be asked, or did not answer: `error` says why."""


@value(kw_only=True)
class Solution:
    """The answer to one problem."""

    problem: str
    """The identity of the problem."""
    subject: Any = None
    """That of the problem."""
    status: SolutionStatus
    values: tuple[float, ...] = ()
    """One for each variable where the status is OPTIMAL or INACCURATE, else empty."""
    seconds: float = 0.0
    """How long solving took."""
    error: str = ""
