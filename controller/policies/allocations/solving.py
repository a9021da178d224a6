# SPDX-License-Identifier: GPL-2.0-or-later
"""What all allocations share that state problems: how they see the jobs, and which solver they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, AllocationJob, Given, Solve
from controller.policies.allocations.check import check
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings, SolvedSettings
from controller.solver.program import Program

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

_KINDS = {"clarabel": ProblemKind.CONIC, "highs": ProblemKind.LINEAR}


def asked(solve: Solve, settings: SolvedSettings, program: Program) -> Found:
    """The answer of the solver that the settings name. Raises AllocationError where it could not be asked."""
    found = solve(_KINDS[settings.solver], program.arrays())
    if found[0] is SolutionStatus.FAILED:
        raise AllocationError(f"the solver failed: {found[2]}")
    return found


def check_sizes(given: Given) -> None:
    """Raises AllocationError where the input is wrong, and where a job has more than one GPU."""
    check(given)
    for job in given.jobs:
        if job.gpus != 1:
            raise AllocationError(f"job {job.id}: gpus: allox takes jobs of one GPU, not of {job.gpus}")


def none_can_run(given: Given) -> Allocated:
    """The answer where no job can run anywhere, or there is none."""
    return Allocated(
        fractions={(job.id,): dict.fromkeys(given.types, 0.0) for job in given.jobs},
        objective=0.0,
        status="no job can run on any type" if given.jobs else "there are no jobs",
    )


def seen(
    given: Given,
    settings: AllocationSettings,
    *,
    ones: bool = False,
    pairs: bool = False,
    agnostic_type: str = "",
) -> Layout:
    """The jobs as an allocation sees them: an agnostic one takes all types for equally fast.

    Args:
        ones: one step per second everywhere; else the throughput of `agnostic_type`.
        pairs: as for `Layout`.
        agnostic_type: where the job cannot run on it, its fastest type.
    """

    def everywhere(job: AllocationJob) -> float:
        if ones:
            return 1.0
        return job.throughput.get(agnostic_type, 0.0) or max(job.throughput.values(), default=0.0)

    alike = everywhere if settings.throughputs == "agnostic" else None
    return Layout(given, pairs=pairs, alike=alike)


def seconds_left(layout: Layout, assumed_seconds: float) -> Array:
    """Steps left of each job, in seconds on its fastest type alone.

    Args:
        assumed_seconds: for a job whose steps are not known.
    """
    steps = layout.of_jobs("steps_left")
    return np.where(np.isnan(steps), assumed_seconds, steps / layout.fastest)
