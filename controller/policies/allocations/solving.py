# SPDX-License-Identifier: GPL-2.0-or-later
"""What all allocations share that state problems: how they see the jobs, and which solver they ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.model.solving import Problem, ProblemKind, Program
from controller.policies.allocations.allocation import Allocated, AllocationJob, Asked, Given
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import AllocationSettings, SolvedSettings

_KINDS = {"clarabel": ProblemKind.CONIC, "highs": ProblemKind.LINEAR, "ecos": ProblemKind.ECOS}


def asked(settings: SolvedSettings, program: Program, memory: Any = None) -> Asked:
    """To be solved by the solver that the settings name."""
    problem = Problem(_KINDS[settings.solver], program.data(), settings.deadline_seconds)
    return Asked(problem, memory)


def none_can_run(given: Given) -> Allocated:
    """The answer where no job can run anywhere."""
    return Allocated(
        fractions={(job.id,): dict.fromkeys(given.types, 0.0) for job in given.jobs},
        objective=0.0,
        status="no job can run on any type",
    )


def seen(
    given: Given, settings: AllocationSettings, *, ones: bool, exact: bool = True, agnostic_type: str = ""
) -> Given:
    """The jobs as an allocation sees them: an agnostic one takes all types for equally fast.

    Args:
        ones: one step per second everywhere; else the throughput of `agnostic_type`.
        exact: a type where a job cannot run stays so.
        agnostic_type: where the job cannot run on it, its fastest type.
    """
    if settings.throughputs == "aware":
        return given

    def everywhere(job: AllocationJob) -> Mapping[str, float]:
        rate = 1.0
        if not ones:
            rate = job.throughput.get(agnostic_type, 0.0) or max(job.throughput.values(), default=0.0)
        return {name: rate for name in given.types if not exact or job.throughput.get(name, 0.0) > 0}

    return replace(given, jobs=tuple(replace(job, throughput=everywhere(job)) for job in given.jobs))


def seconds_left(layout: Layout, assumed_seconds: float) -> list[float]:
    """Steps left of each job, in seconds on its fastest type alone.

    Args:
        assumed_seconds: for a job whose steps are not known.
    """
    return [
        assumed_seconds if job.steps_left is None else job.steps_left / layout.fastest(number)
        for number, job in enumerate(layout.jobs)
    ]
