# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds the data of a problem from whole arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from controller.model.solving import Cone

Part: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Rows within a block, variables and coefficients, of one length; a number stands for as many."""


class Program:
    """Variables are numbers from 0 on, without bounds of their own."""

    def __init__(self) -> None:
        self.size = 0
        """How many variables there are."""
        self._rows = 0
        self._costs: list[Any] = []
        self._limits: list[Any] = []
        self._parts: list[Any] = []
        self._cones: list[list[Any]] = []

    def variables(self, count: int, cost: ArrayLike = 0.0) -> range:
        """New variables.

        Args:
            cost: of each, or one for all of them.
        """
        first, self.size = self.size, self.size + int(count)
        self._costs.append(np.broadcast_to(np.asarray(cost, float), int(count)))
        return range(first, self.size)

    def block(self, cone: Cone, limits: ArrayLike, *parts: Part, rows_each: int = 0) -> None:
        """`limit - expression` of the rows lies in the cone. Rows of ZERO and NONNEGATIVE that follow each
        other make one block.

        Args:
            limits: one for each row.
            parts: the expressions; what they have in common is added.
            rows_each: the rows are in several cones of so many rows. 0: in one.
        """
        numbers = np.atleast_1d(np.asarray(limits, float))
        for rows, variables, coefficients in parts:
            entries = np.broadcast_arrays(self._rows + np.asarray(rows, int), variables, coefficients)
            self._parts.append(tuple(map(np.atleast_1d, entries)))
        self._limits.append(numbers)
        self._rows += len(numbers)
        count = rows_each or len(numbers)
        new = [[cone.value, count] for _ in range(len(numbers) // count if count else 1)]
        if cone in (Cone.ZERO, Cone.NONNEGATIVE) and self._cones and self._cones[-1][0] == cone.value:
            self._cones[-1][1] += count
        else:
            self._cones += new

    def arrays(self) -> Mapping[str, Any]:
        """What was built: `cost` by variable; `rows`, `columns` and `values` of the coefficients; `limits` by
        row; `cones` as [name, number of rows], in the order of the rows."""
        rows, columns, values = zip(*self._parts, strict=True) if self._parts else ((), (), ())
        return {
            "cost": _joined(self._costs, float),
            "rows": _joined(rows, int),
            "columns": _joined(columns, int),
            "values": _joined(values, float),
            "limits": _joined(self._limits, float),
            "cones": [list(cone) for cone in self._cones],
        }


def _joined(parts: Iterable[Any], kind: type) -> Any:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind, copy=False)
