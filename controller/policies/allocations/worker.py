# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole allocations as problems: they are stated where they are solved, outside the loop. `main` is what the
solver's process runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import Fractions, Given, Jobs
from controller.policies.allocations.settings import ONE_GPU, SETTINGS
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
    settings = SETTINGS[name].model_validate(data["settings"])
    taken = given
    if name in ONE_GPU:
        # In rounds other jobs get no fraction, and do not keep those of one GPU from theirs.
        taken = replace(given, jobs=tuple(job for job in given.jobs if job.gpus == 1), pairs=())
    allocated = ALLOCATIONS[name](settings).allocate(taken, find)
    return SolutionStatus.OPTIMAL, _values(given, allocated.fractions), ""


def _values(given: Given, fractions: Fractions) -> list[float]:
    """By jobs, then pairs, then types, in the order of what was given."""
    keys: list[Jobs] = [*((job.id,) for job in given.jobs), *(pair.jobs for pair in given.pairs)]
    return [float(fractions.get(key, {}).get(name, 0.0)) for key in keys for name in given.types]


def main() -> None:
    """Serve until standard input ends."""
    worker.main(answers)
