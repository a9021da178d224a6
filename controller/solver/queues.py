# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs in the queues of machines, by the Hungarian method."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from controller.model.solving import SolutionStatus
from controller.solver.problem_data import Found


def solve_queues(data: Mapping[str, Any]) -> Found:
    """The places with the least sum of completion times. Costs are summed in the order of AlloX's code in
    Gavel, so that the same one of equal optima is found."""
    from scipy.optimize import linear_sum_assignment

    seconds = np.asarray(data["seconds"], float)
    jobs = len(seconds)
    costs = np.concatenate([place * seconds for place in range(1, jobs + 1)], axis=1)
    _, places = linear_sum_assignment(costs + np.asarray(data["delays"], float).reshape(jobs, 1))
    return SolutionStatus.OPTIMAL, list(map(float, places)), ""
