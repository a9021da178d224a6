# SPDX-License-Identifier: GPL-2.0-or-later
"""Finish-time fairness (Themis) as Gavel states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.model import JobId
from controller.model.solving import Cone, Program, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout, Row, single
from controller.policies.allocations.settings import GavelFtfSettings
from controller.policies.allocations.shares import fixed, isolated, isolated_throughputs
from controller.policies.allocations.solving import asked, none_can_run, seen

Ratio = tuple[float, float]
"""A job's ratio is the first number plus the second divided by its speed."""


class FinishTime:
    """Minimises the largest ratio of a job's finish time to its finish time alone on its part of the cluster:
    (time so far + steps left / throughput) / (isolated time so far + steps left / isolated throughput).

    A job that does not tell its steps counts as one without end, whose ratio is that of the throughputs.
    """

    def __init__(self, settings: GavelFtfSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        speeds, ratios = self._stated(layout)
        if not any(part for _, part in ratios):
            return fixed(layout, isolated(layout), "no job has steps left")
        program = Program()
        if self._no_ratio(layout):
            inverse = [program.variables(1, ratios[0][1])[0]]
            first = program.variables(len(layout.columns)).start
        else:
            largest = program.variables(1, 1.0)[0]
            first = program.variables(len(layout.columns)).start
            inverse = list(program.variables(len(layout.jobs)))
            program.cone(
                Cone.NONNEGATIVE,
                (([(largest, -1.0), (inverse[job], part)], -done) for job, (done, part) in enumerate(ratios)),
            )
        layout.add_validity(program, first)
        for job, row in enumerate(speeds):
            # inverse * speed >= 1
            terms = [(first + column, -speed) for column, speed in row]
            one = inverse[job]
            cone = [([*terms, (one, -1.0)], 0.0), ([*terms, (one, 1.0)], 0.0), ([], 2.0)]
            program.cone(Cone.SECOND_ORDER, cone)
        return asked(self._settings, program)

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        with_values = solution.status in (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE)
        if not self._exact and not with_values:
            return fixed(layout, isolated(layout), "isolated")
        columns = len(layout.columns)
        values = solved(solution, 1 + columns + (0 if self._no_ratio(layout) else len(layout.jobs)))
        x = valid(layout, values[1 : 1 + columns])
        speeds, ratios = self._stated(layout)
        worst = 0.0
        for row, (done, part) in zip(speeds, ratios, strict=True):
            speed = sum(each * x[column] for column, each in row)
            worst = max(worst, done + (part / speed if speed > 0 else float(part > 0) * 1e300))
        return Allocated(fractions=fractions(layout, x), objective=worst, status=solution.status.value)

    def isolated_rates(self, given: Given) -> Mapping[JobId, float]:
        """Steps per second of each job on its own part of the cluster, as this allocation sees them; 0 for
        one that can run nowhere. Raises AllocationError."""
        layout = self._layout(given)
        rates = zip(layout.jobs, isolated_throughputs(layout), strict=True)
        return {**{job.id: 0.0 for job in given.jobs}, **{job.id: rate for job, rate in rates}}

    def _no_ratio(self, layout: Layout) -> bool:
        """Gavel's code has no variable for the largest ratio where there is one job."""
        return not self._exact and len(layout.jobs) == 1

    def _layout(self, given: Given) -> Layout:
        named = self._settings.agnostic_type
        seen_so = seen(given, self._settings, ones=False, exact=self._exact, agnostic_type=named)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _stated(self, layout: Layout) -> tuple[list[Row], list[Ratio]]:
        """Speeds by column, and the ratios in terms of them. An exact problem has speeds relative to the
        fastest type, so that all numbers are of similar size."""
        speeds, ratios = [], []
        for number, (job, isolated_rate) in enumerate(
            zip(layout.jobs, isolated_throughputs(layout), strict=True)
        ):
            unit = layout.fastest(number) if self._exact else 1.0
            if self._settings.space_sharing and not self._exact:
                # Gavel's code rounds them, and counts the weights twice.
                row = [(column, single(single(rate) / job.weight)) for column, rate in layout.of_job[number]]
                speeds.append(row)
            else:
                speeds.append([(column, rate / unit) for column, rate in layout.of_job[number]])
            so_far = job.seconds_so_far
            if job.steps_left is None:
                ratios.append((0.0, isolated_rate / unit))
                continue
            alone = so_far if job.steps_done is None else job.steps_done / isolated_rate
            alone = alone if job.isolated_seconds is None else job.isolated_seconds
            alone += job.steps_left / isolated_rate
            if alone > 0:
                ratios.append((so_far * (1.0 / alone), job.steps_left / unit * (1.0 / alone)))
            else:
                ratios.append((0.0, 0.0))
        return speeds, ratios
