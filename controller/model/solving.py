# SPDX-License-Identifier: GPL-2.0-or-later
"""Optimisation problems that an allocation states, and their solutions. Both are plain data: a problem is
solved outside the loop, and its solution is observed in a later snapshot."""

from __future__ import annotations

import enum
import hashlib
import marshal
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from controller.model.value import value

Terms: TypeAlias = Iterable[tuple[int, float]]
"""A linear expression: (variable, coefficient) pairs."""


class ProblemKind(str, enum.Enum):
    """Which solver a problem is for. The first four take the data that `Program` makes."""

    LINEAR = "linear"
    """HiGHS. Cones: `zero` and `nonnegative`."""
    VERTEX = "vertex"
    """The simplex method of HiGHS: its optimum is a corner. Cones: as LINEAR."""
    CONIC = "conic"
    """Clarabel. Its optimum is central among equal ones. Cones: all of `Cone`."""
    ECOS = "ecos"
    """ECOS, for comparisons. Cones: all but `exponential`."""
    QUEUES = "queues"
    """Jobs in the queues of machines, by the Hungarian method of SciPy, for comparisons: `seconds` of each
    job on each machine and the `delays` that each job has already. The k-th job from the end of a queue
    counts k times. The values are machine + (k - 1) * machines, by job; `variables` is their number."""
    ALLOCATION = "allocation"
    """A whole allocation, stated and solved where the solver is. Its data has the number of its values as
    `variables`, and is no `Program`'s."""


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
    """JSON, as `Program.data` makes it but for QUEUES and ALLOCATION."""
    deadline_seconds: float = 30.0
    """What solving may take; then it counts as failed."""
    subject: Any = None
    """JSON that says what the variables stand for. It is handed back with the solution."""
    identity: str = field(init=False)
    """A digest of kind, data and subject. The same in every run."""

    def __post_init__(self) -> None:
        """Raises ValueError where data or subject are not made of JSON values."""
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
    FAILED = "failed"
    """No answer: `error` says why."""


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


class Program:
    """Builds the data of a problem. Variables are numbers from 0 on, without bounds of their own."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._limits: list[float] = []
        self._cones: list[tuple[str, int]] = []

    def variables(self, count: int, cost: float = 0.0) -> range:
        """New variables, each with this cost."""
        first = len(self._cost)
        self._cost.extend([float(cost)] * count)
        return range(first, first + count)

    def at_most(self, terms: Terms, limit: float) -> None:
        """The expression is at most `limit`."""
        self.cone(Cone.NONNEGATIVE, [(terms, limit)])

    def equal(self, terms: Terms, limit: float) -> None:
        """The expression is `limit`."""
        self.cone(Cone.ZERO, [(terms, limit)])

    def cone(self, cone: Cone, rows: Iterable[tuple[Terms, float]]) -> None:
        """`limit - expression` of these rows lies in the cone. Rows of ZERO and NONNEGATIVE that follow each
        other make one block."""
        first = len(self._limits)
        for terms, limit in rows:
            row = len(self._limits)
            if terms := list(terms):
                variables, coefficients = zip(*terms, strict=True)
                self._rows.extend([row] * len(terms))
                self._columns.extend(map(int, variables))
                self._values.extend(map(float, coefficients))
            self._limits.append(float(limit))
        count = len(self._limits) - first
        if cone in (Cone.ZERO, Cone.NONNEGATIVE) and self._cones and self._cones[-1][0] == cone.value:
            count += self._cones.pop()[1]
        self._cones.append((cone.value, count))

    def data(self) -> Mapping[str, Any]:
        """What was built: `cost` by variable; `rows`, `columns` and `values` of the coefficients; `limits` by
        row; `cones` as [name, number of rows], in the order of the rows."""
        return {
            "cost": list(self._cost),
            "rows": list(self._rows),
            "columns": list(self._columns),
            "values": list(self._values),
            "limits": list(self._limits),
            "cones": [list(cone) for cone in self._cones],
        }
