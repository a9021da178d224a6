# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation as rounds keep it: one row of fractions for each job and each pair."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TypeAlias, TypeVar

from controller.model.value import empty, value
from controller.policies.allocations.allocation import Fractions, Jobs

LEAST_FRACTION = 1e-6
"""Less is none: solvers that approach an optimum from inside give every job a little of everything."""
Row: TypeAlias = tuple[float, ...]
Number = TypeVar("Number", bound=float)


@value
class FractionTable:
    """All fractions of an allocation."""

    types: tuple[str, ...] = ()
    rows: Mapping[Jobs, Row] = field(default_factory=empty)
    """One fraction for each type."""


def in_rows(flat: Iterable[Number], types: tuple[str, ...]) -> Iterator[tuple[Number, ...]]:
    """One row after the other, of numbers that are given so. Raises ValueError where the last is not full."""
    return zip(*[iter(flat)] * len(types), strict=True) if types else iter(())


def tabulated(fractions: Fractions, types: tuple[str, ...]) -> FractionTable:
    """Fractions by type as a table. A type that is not named: none of the time."""
    rows = {jobs: tuple(some(row.get(name, 0.0)) for name in types) for jobs, row in fractions.items()}
    return FractionTable(types, rows)


def some(fraction: float) -> float:
    """The fraction, or 0 where it is none."""
    return fraction if fraction >= LEAST_FRACTION else 0.0
