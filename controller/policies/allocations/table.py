# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation as rounds take it over: the fractions of all jobs and pairs, as its solution has them."""

from collections.abc import Sequence

from controller.model.value import value
from controller.policies.allocations.allocation import Fractions, Jobs

LEAST_FRACTION = 1e-6
"""Less is none: solvers that approach an optimum from inside give every job a little of everything."""


@value
class FractionTable:
    """All fractions of an allocation, those of the first jobs by type, then those of the next."""

    types: tuple[str, ...]
    jobs: Sequence[Jobs]
    fractions: Sequence[float]
    """As many as jobs and types; below LEAST_FRACTION there are zeros only."""


def tabulated(fractions: Fractions, types: tuple[str, ...]) -> FractionTable:
    """Fractions by type as a table. A type that is not named: none of the time."""
    flat = [some(row.get(name, 0.0)) for row in fractions.values() for name in types]
    return FractionTable(types, list(fractions), flat)


def some(fraction: float) -> float:
    """The fraction, or 0 where it is none."""
    return fraction if fraction >= LEAST_FRACTION else 0.0
