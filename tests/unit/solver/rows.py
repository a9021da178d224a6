# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems stated row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from controller.model import Cone
from controller.solver.program import Program

Terms: TypeAlias = Iterable[tuple[int, float]]
"""A linear expression: (variable, coefficient) pairs."""


class Rows(Program):
    """`Program` with rows instead of blocks."""

    def at_most(self, terms: Terms, limit: float) -> None:
        """The expression is at most `limit`."""
        self.cone(Cone.NONNEGATIVE, [(terms, limit)])

    def equal(self, terms: Terms, limit: float) -> None:
        """The expression is `limit`."""
        self.cone(Cone.ZERO, [(terms, limit)])

    def cone(self, cone: Cone, rows: Iterable[tuple[Terms, float]]) -> None:
        """`block`, row by row."""
        listed = [(list(terms), limit) for terms, limit in rows]
        parts = [
            (row, [variable for variable, _ in terms], [coefficient for _, coefficient in terms])
            for row, (terms, _) in enumerate(listed)
            if terms
        ]
        self.block(cone, [limit for _, limit in listed], *parts)

    def data(self) -> Mapping[str, Any]:
        """What was built, as JSON."""
        return {
            name: list(each) if name == "cones" else each.tolist() for name, each in self.arrays().items()
        }
