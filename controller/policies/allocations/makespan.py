# SPDX-License-Identifier: GPL-2.0-or-later
"""The least makespan."""

from __future__ import annotations

from typing import Any

from controller.model.solving import Cone, Program, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, AllocationJob, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout, Row, single
from controller.policies.allocations.settings import GavelMakespanSettings
from controller.policies.allocations.shares import fixed, isolated
from controller.policies.allocations.solving import asked, none_can_run, seconds_left, seen

LOW_SECONDS, HIGH_SECONDS = 100.0, 1e6
"""Where the bisection of Gavel's code begins."""
MOST_SECONDS = 1e12
"""Where it is given up."""
LEAST_PART = 1e-4
"""Of the makespan: rows of shorter jobs are not scaled further."""


class Makespan:
    """Minimises the time until the last job ends, at constant throughputs. One linear problem; Gavel's code
    bisects instead, and stops within 5 %."""

    def __init__(self, settings: GavelMakespanSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not any(left):
            return fixed(layout, isolated(layout), "no job has steps left")
        if not self._exact:
            search = {"low": LOW_SECONDS, "high": HIGH_SECONDS, "last": HIGH_SECONDS, "x": None}
            return self._try(layout, left, search)
        work = sum(seconds * job.gpus for seconds, job in zip(left, layout.jobs, strict=True))
        about = max(max(left), work / sum(layout.workers(name) for name in layout.physical))
        program = Program()
        speed = program.variables(1, 1.0)[0]  # the negative of `about` divided by the makespan
        first = program.variables(len(layout.columns)).start
        program.cone(
            Cone.NONNEGATIVE,
            (
                _in_time(layout, job, first, speed, seconds / about)
                for job, seconds in enumerate(left)
                if seconds > 0
            ),
        )
        layout.add_validity(program, first)
        return asked(self._settings, program)

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not self._exact:
            return self._narrow(layout, left, dict(memory), solution)
        x = valid(layout, solved(solution, 1 + len(layout.columns))[1:])
        return self._allocated(layout, left, x, solution.status.value)

    def _layout(self, given: Given) -> Layout:
        named = self._settings.agnostic_type
        seen_so = seen(given, self._settings, ones=False, exact=self._exact, agnostic_type=named)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _allocated(self, layout: Layout, left: list[float], x: list[float], status: str) -> Allocated:
        """The objective is the makespan, in seconds."""
        speeds = [rate / layout.fastest(job) for job, rate in enumerate(layout.throughputs(x))]
        if any(speed <= 0 < seconds for speed, seconds in zip(speeds, left, strict=True)):
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = max(seconds / speed for speed, seconds in zip(speeds, left, strict=True) if seconds > 0)
        return Allocated(fractions=fractions(layout, x), objective=most, status=status)

    def _try(self, layout: Layout, left: list[float], search: dict[str, Any]) -> Asked:
        """Can all jobs end within the middle of the range?"""
        seconds = (search["low"] + search["high"]) / 2.0
        program = Program()
        first = program.variables(len(layout.columns)).start
        layout.add_validity(program, first)
        rounded = single if self._settings.space_sharing else float
        rows = zip(layout.jobs, left, layout.of_job, strict=True)
        program.cone(
            Cone.NONNEGATIVE,
            (
                (
                    [(first + column, -rounded(rate)) for column, rate in row],
                    -_steps(layout, job, needed) / seconds,
                )
                for job, needed, row in rows
            ),
        )
        return asked(self._settings, program, search)

    def _narrow(
        self, layout: Layout, left: list[float], search: dict[str, Any], solution: Solution
    ) -> Asked | Allocated:
        middle = (search["low"] + search["high"]) / 2.0
        if solution.status is SolutionStatus.OPTIMAL:
            search |= {"high": middle, "x": list(solved(solution, len(layout.columns)))}
        else:
            search["low"] = middle
        if 1.05 * search["low"] < search["high"]:
            return self._try(layout, left, search)
        if search["x"] is None:
            if search["last"] > MOST_SECONDS:
                raise AllocationError("the jobs do not end within any time (infeasible)")
            search |= {"low": search["last"], "high": search["last"] * 10.0, "last": search["last"] * 10.0}
            return self._try(layout, left, search)
        return self._allocated(layout, left, valid(layout, search["x"]), "within 5 %")


def _in_time(layout: Layout, job: int, first: int, speed: int, part: float) -> tuple[Row, float]:
    """The row of one job: its speed is as large as the part that it is of the makespan. Divided by that part,
    so that a solver's tolerance is one of the makespan, but for the shortest jobs."""
    unit = max(part, LEAST_PART)
    scale = unit * layout.fastest(job)
    row = [(first + column, -rate / scale) for column, rate in layout.of_job[job]]
    return [(speed, -part / unit), *row], 0.0


def _steps(layout: Layout, job: AllocationJob, seconds: float) -> float:
    if job.steps_left is not None:
        return job.steps_left
    return seconds * layout.fastest(layout.index[job.id])
