# SPDX-License-Identifier: GPL-2.0-or-later
"""The most throughput per price, with or without deadlines of the jobs."""

from __future__ import annotations

from typing import Any

from controller.model.solving import Cone, Program, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import GavelCostSettings
from controller.policies.allocations.solving import asked, none_can_run, seen
from controller.policies.allocations.sums import gains, most, total, units

ROUNDING = 1e-8
"""How much of the best ratio the second problem may give away."""


class Cost:
    """Maximises the sum of throughputs divided by the price of the GPUs in use.

    Three problems at most. The first finds the best ratio (by the transformation of Charnes and Cooper); the
    last finds the most throughput at that ratio, since using less of the same has it too. Where the deadlines
    cannot all be kept, one before asks how much of each can: the throughput that they need falls short by as
    little as possible, summed over the jobs, each relative to what it needs.

    `formulation = reference` maximises the sum of throughput / price, and without any deadline where they
    cannot all be kept.
    """

    def __init__(self, settings: GavelCostSettings, slo: bool) -> None:
        self._settings, self._slo = settings, slo
        self._exact = settings.formulation == "exact"

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        for name in layout.physical:
            if not given.prices.get(name, 0.0) > 0:
                raise AllocationError(f"prices.{name}: a price above 0 is needed")
        if not layout.jobs:
            return none_can_run(given)
        needs = self._needs(layout)
        if self._exact:
            return self._ask_ratio(layout, needs, "optimal")
        return self._ask_sum(layout, needs, "optimal")

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        stage, status = memory["stage"], memory["status"]
        missed = solution.status is SolutionStatus.INFEASIBLE and status == "optimal"
        columns = len(layout.columns)
        if stage == "sum":
            if missed and memory["needs"]:
                return self._ask_sum(layout, [], "without deadlines")
            x = valid(layout, solved(solution, columns))
            return self._allocated(layout, x, total(x, self._per_price(layout)), status)
        if stage == "ratio" and missed and memory["needs"]:
            return self._ask_shortfall(layout, memory["needs"])
        if stage == "ratio":
            values = solved(solution, columns + 1)
            x = valid(layout, [part / max(values[columns], 1e-12) for part in values[:columns]])
            return self._ask_most(layout, x, memory["needs"], status)
        if stage == "shortfall":
            needs = memory["needs"]
            short = solved(solution, columns + len(needs))[columns:]
            kept = [
                [job, need * max(0.0, 1 - max(0.0, missing) - 1e-7)]
                for (job, need), missing in zip(needs, short, strict=True)
            ]
            late = sum(missing > 1e-6 for missing in short)
            return self._ask_ratio(layout, kept, f"{late} jobs cannot keep their deadline")
        x = memory["x"]
        if solution.status in (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE):
            x = valid(layout, solved(solution, columns))
        return self._allocated(layout, x, self._ratio(layout, x), status)

    def _layout(self, given: Given) -> Layout:
        seen_so = seen(given, self._settings, ones=False, exact=self._exact)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _needs(self, layout: Layout) -> list[list[Any]]:
        """Number of a job and throughput that it needs to end in time, for each that has a deadline ahead."""
        if not self._slo:
            return []
        return [
            [number, job.steps_left / job.slo_seconds_left]
            for number, job in enumerate(layout.jobs)
            if job.steps_left and job.slo_seconds_left is not None and job.slo_seconds_left > 0
        ]

    def _gains(self, layout: Layout) -> list[float]:
        return gains(layout, units(layout, self._settings.normalised))

    def _price(self, layout: Layout, name: str) -> float:
        return layout.given.prices[layout.given.draws_on.get(name, name)]

    def _prices(self, layout: Layout) -> list[float]:
        return [self._price(layout, name) * layout.sizes[key] for key, name in layout.columns]

    def _per_price(self, layout: Layout) -> list[float]:
        return [
            gain / self._price(layout, name)
            for gain, (_, name) in zip(self._gains(layout), layout.columns, strict=True)
        ]

    def _ratio(self, layout: Layout, x: list[float]) -> float:
        price = total(x, self._prices(layout))
        return total(x, self._gains(layout)) / price if price > 0 else 0.0

    def _ask_sum(self, layout: Layout, needs: list[list[Any]], status: str) -> Asked:
        program = Program()
        most(layout, program, self._per_price(layout))
        _keep(layout, program, needs)
        return asked(self._settings, program, {"stage": "sum", "needs": needs, "status": status})

    def _ask_ratio(self, layout: Layout, needs: list[list[Any]], status: str) -> Asked:
        """The best ratio: X times a scale so large that it costs 1."""
        of_column, prices = self._gains(layout), self._prices(layout)
        unit, dear = max(of_column), max(prices)
        program = Program()
        for gain in of_column:
            program.variables(1, -gain / unit)
        scale = program.variables(1)[0]
        layout.add_validity(program, 0, scale)
        # The largest X of the best ratio uses all the time of one job or all GPUs of one type.
        program.at_most([(scale, 1.0)], dear / min(layout.given.prices[name] for name in layout.physical))
        for number, need in needs:
            fastest = layout.fastest(number)
            terms = [(column, -rate / fastest) for column, rate in layout.of_job[number]]
            program.at_most([*terms, (scale, need / fastest)], 0.0)
        program.equal([(column, price / dear) for column, price in enumerate(prices)], 1.0)
        return asked(self._settings, program, {"stage": "ratio", "needs": needs, "status": status})

    def _ask_shortfall(self, layout: Layout, needs: list[list[Any]]) -> Asked:
        program = Program()
        program.variables(len(layout.columns))
        short = program.variables(len(needs), 1.0)
        layout.add_validity(program, 0)
        for missing, (number, need) in zip(short, needs, strict=True):
            program.at_most([(missing, -1.0)], 0.0)
            terms = [(column, -rate / need) for column, rate in layout.of_job[number]]
            program.at_most([*terms, (missing, -1.0)], -1.0)
        return asked(self._settings, program, {"stage": "shortfall", "needs": needs, "status": ""})

    def _ask_most(self, layout: Layout, x: list[float], needs: list[list[Any]], status: str) -> Asked:
        of_column, prices = self._gains(layout), self._prices(layout)
        ratio, unit = self._ratio(layout, x), max(of_column)
        program = Program()
        most(layout, program, of_column)
        loss = [(ratio * price - gain) / unit for gain, price in zip(of_column, prices, strict=True)]
        program.at_most(enumerate(loss), ROUNDING)
        _keep(layout, program, needs)
        memory = {"stage": "most", "needs": needs, "status": status, "x": x}
        return asked(self._settings, program, memory)

    def _allocated(self, layout: Layout, x: list[float], objective: float, status: str) -> Allocated:
        return Allocated(fractions=fractions(layout, x), objective=objective, status=status)


def _keep(layout: Layout, program: Program, needs: list[list[Any]]) -> None:
    """The jobs have the throughput that they need."""
    program.cone(
        Cone.NONNEGATIVE,
        (
            ([(column, -rate / need) for column, rate in layout.of_job[number]], -1.0)
            for number, need in needs
            if need > 0
        ),
    )
