# SPDX-License-Identifier: GPL-2.0-or-later
"""Max-min fairness over heterogeneous GPUs (Gavel's LAS)."""

from __future__ import annotations

from typing import Any

from controller.model.solving import Cone, Program, Solution
from controller.policies.allocations.allocation import Allocated, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout, Row, single
from controller.policies.allocations.settings import GavelLasSettings
from controller.policies.allocations.shares import equal_throughputs
from controller.policies.allocations.solving import asked, none_can_run, seen


class MaxMin:
    """Maximises the least share. A job's share is its effective throughput relative to that of an equal split
    of all types, times its GPUs, divided by its weight."""

    def __init__(self, settings: GavelLasSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        program = Program()
        least = program.variables(1, 1.0)[0]  # the negative of the least share
        first = program.variables(len(layout.columns)).start
        program.cone(
            Cone.NONNEGATIVE,
            (
                ([(least, -1.0), *((first + column, -part) for column, part in row)], 0.0)
                for row in self._shares(layout)
            ),
        )
        layout.add_validity(program, first)
        return asked(self._settings, program)

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        x = valid(layout, solved(solution, 1 + len(layout.columns))[1:])
        least = min(sum(part * x[column] for column, part in row) for row in self._shares(layout))
        return Allocated(fractions=fractions(layout, x), objective=least, status=solution.status.value)

    def _layout(self, given: Given) -> Layout:
        seen_so = seen(given, self._settings, ones=True, exact=self._exact)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _shares(self, layout: Layout) -> list[Row]:
        """Each job's share per unit of its columns. The order of the products is that of Gavel's code, so
        that even the last bits are the same."""
        equal = equal_throughputs(layout)
        if self._settings.space_sharing and not layout.exact:
            return [
                [(column, single(single(rate) / job.weight) * job.gpus / mine) for column, rate in row]
                for job, mine, row in zip(layout.jobs, equal, layout.of_job, strict=True)
            ]
        return [
            [(column, (rate * ((1.0 / job.weight) * (1.0 / mine))) * job.gpus) for column, rate in row]
            for job, mine, row in zip(layout.jobs, equal, layout.of_job, strict=True)
        ]
