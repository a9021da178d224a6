# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole allocations as problems: they are stated where they are solved, outside the loop. `main` is what the
solver's process runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations import given_data
from controller.policies.allocations.as_problem import check_values
from controller.policies.allocations.settings import ONE_GPU, AllocationSettings
from controller.policies.allocations.table import some
from controller.solver import worker
from controller.solver.worker_solver import command_of

if TYPE_CHECKING:
    from controller.solver.problem_data import Found
    from controller.solver.solve import Solve

COMMAND = command_of(__name__)
"""For `WorkerSolver`."""


def answers() -> Mapping[ProblemKind, Solve]:
    """For `ImmediateSolver`, and for the process."""
    return {ProblemKind.ALLOCATION: solve}


def solve(data: Mapping[str, Any]) -> Found:
    """What `AsProblem` states. Raises AllocationError, ValidationError."""
    # NumPy takes a moment to load, and most policies state no problem.
    from controller.policies.allocations.presets import ALLOCATIONS
    from controller.solver.solve import find

    name, given = data["allocation"], given_data.load(data["given"])
    settings = AllocationSettings.model_validate(data["settings"])
    taken = given
    if name in ONE_GPU:
        # In rounds other jobs get no fraction, and do not keep those of one GPU from theirs.
        taken = replace(given, jobs=tuple(job for job in given.jobs if job.gpus == 1), pairs=())
    fractions, none = ALLOCATIONS[name](settings).allocate(taken, find).fractions, dict[str, float]()
    rows = (fractions.get(key, none) for key in given.keys)
    values = [float(row.get(name, 0.0)) for row in rows for name in given.types]
    check_values(given, values, one_gpu=name in ONE_GPU)
    return SolutionStatus.OPTIMAL, list(map(some, values)), ""


def main() -> None:
    """Serve until standard input ends."""
    worker.main(answers)
