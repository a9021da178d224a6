# SPDX-License-Identifier: GPL-2.0-or-later
"""A problem as the process that solves it gets it, and what it finds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from controller.model.solving import SolutionStatus

Found: TypeAlias = tuple[SolutionStatus, Sequence[float], str]
"""Status, values, and what failed."""


def answered(status: SolutionStatus, values: Iterable[float], said: str) -> Found:
    """The answer of a solver. `said`: by one that gave up."""
    if status in (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE):
        return status, list(map(float, values)), ""
    return status, [], said if status is SolutionStatus.UNSOLVED else ""


def matrix_of(data: Mapping[str, Any]) -> sparse.csc_array:
    shape = (len(data["limits"]), len(data["cost"]))
    entries = np.asarray(data["values"], float)
    matrix = sparse.csc_array((entries, (data["rows"], data["columns"])), shape=shape)
    matrix.eliminate_zeros()
    return matrix
