# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems with second-order cones, by ECOS, which Gavel's code uses. It is GPL-3.0 and no part of the
product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from controller.model.solving import Cone, SolutionStatus
from controller.policies.allocations.allocation import AllocationError
from controller.solver.problem_data import Found, answered, matrix_of


def solve_ecos(data: Mapping[str, Any]) -> Found:
    """The solution, also where ECOS calls it inaccurate. Rows keep their order within a kind of cone. Raises
    AllocationError where there is no ECOS."""
    try:
        import ecos
    except ImportError as missing:
        raise AllocationError("this needs ECOS: pip install ecos==2.0.14") from missing
    matrix = sparse.csr_array(matrix_of(data))
    limits = np.asarray(data["limits"], float)
    rows: dict[Cone, list[int]] = {Cone.ZERO: [], Cone.NONNEGATIVE: [], Cone.SECOND_ORDER: []}
    first = 0
    for cone, count in data["cones"]:
        if Cone(cone) not in rows:
            raise ValueError(f"ECOS is not asked to take the cone {cone!r}")
        rows[Cone(cone)].extend(range(first, first + count))
        first += count
    inside = rows[Cone.NONNEGATIVE] + rows[Cone.SECOND_ORDER]
    equal = rows[Cone.ZERO]
    sizes = [count for cone, count in data["cones"] if Cone(cone) is Cone.SECOND_ORDER]
    equalities = (sparse.csc_matrix(matrix[equal]), limits[equal]) if equal else ()
    found = ecos.solve(
        np.asarray(data["cost"], float),
        sparse.csc_matrix(matrix[inside]),
        limits[inside],
        {"l": len(rows[Cone.NONNEGATIVE]), "q": sizes},
        *equalities,
        verbose=False,
    )
    code = found["info"]["exitFlag"]
    status = _STATUSES.get(code, SolutionStatus.UNSOLVED)
    return answered(status, found.get("x", ()), f"ECOS: exit flag {code}")


_STATUSES = {
    0: SolutionStatus.OPTIMAL,
    10: SolutionStatus.INACCURATE,
    1: SolutionStatus.INFEASIBLE,
    11: SolutionStatus.INFEASIBLE,
    2: SolutionStatus.UNBOUNDED,
    12: SolutionStatus.UNBOUNDED,
}
"""By the exit flag of ECOS; from 10 on its answer is less exact."""
