# SPDX-License-Identifier: GPL-2.0-or-later
"""The most throughput per price, with or without deadlines of the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from controller.model.solving import Cone, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Given, Solve
from controller.policies.allocations.check import GOOD
from controller.policies.allocations.checked import LEAST, fractions, raised, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.solving import LaidOut, asked
from controller.policies.allocations.sums import gains, most, units
from controller.solver.program import Part, Program

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

ROUNDING = 1e-8
"""How much of the best ratio the last problem may give away, relative to the largest gain."""


class Cost(LaidOut):
    """Maximises the sum of throughputs divided by the price of the GPUs in use.

    The last problem finds the most throughput at the best ratio, since using less of the same has it too.
    Without deadlines that ratio is the one of the best column; with them a problem before finds it (by the
    transformation of Charnes and Cooper). Where the deadlines cannot all be kept, one before that asks how
    much of each can: the throughput that they need falls short by as little as possible, summed over the
    jobs, each relative to what it needs.
    """

    def layout(self, given: Given) -> Layout:
        layout = super().layout(given)
        for name in layout.physical:
            if layout.workers(name) and not given.prices.get(name, 0.0) > 0:
                raise AllocationError(f"prices.{name}: a price above 0 is needed")
        return layout

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        return _Priced(layout, self._settings, solve).best_ratio(self._needs(layout))

    def _needs(self, layout: Layout) -> Array:
        """The throughput that each job needs."""
        return np.zeros(len(layout.jobs))


class CostInTime(Cost):
    """The same, while jobs with a deadline end in time."""

    def _needs(self, layout: Layout) -> Array:
        """0 for a job that has no deadline ahead."""
        left, seconds = layout.of_jobs("steps_left"), layout.of_jobs("slo_seconds_left")
        return np.divide(left, seconds, out=np.zeros_like(left), where=(left > 0) & (seconds > 0))


class _Priced:
    """The problems of one allocation."""

    def __init__(self, layout: Layout, settings: AllocationSettings, solve: Solve) -> None:
        self._layout, self._settings, self._solve = layout, settings, solve
        prices = [layout.given.prices.get(name, 0.0) for name in layout.physical]
        by_type = np.array([price or max(prices) for price in prices])  # without GPUs any price will do
        self._cheapest = by_type.min()
        self._price = by_type[layout.base_of]
        """By column: of one GPU."""
        self._prices = self._price * layout.gpus
        self._gains = gains(layout, units(layout, settings.normalised))

    def best_ratio(self, needs: Array) -> Allocated:
        """Of throughput to price; of the answers that have it, that with the most throughput."""
        if not needs.any():
            # Nothing is better than the best column alone; any sum of such columns is as good.
            kept = self._loss((self._gains / self._prices).max()) <= ROUNDING
            layout, x = self._layout.only(kept), np.zeros(self._layout.size)
            found = self._most(layout, self._gains[kept], needs)
            x[kept] = valid(layout, solved(found, layout.size))
            return self._allocated(x, "optimal")
        status, found = "optimal", self._best_ratio(needs)
        if found[0] is SolutionStatus.INFEASIBLE:
            needs, status = self._relaxed(needs)
            found = self._best_ratio(needs)
        values = solved(found, self._layout.size + 1)
        x = valid(self._layout, values[:-1] / max(values[-1], 1e-12))
        x = raised(self._layout, x, self._layout.rate, needs)
        kept = x > 0  # the central optimum has what any optimum has
        layout, loss = self._layout.only(kept), self._loss(self._ratio(x))[kept]
        found = self._most(layout, self._gains[kept], needs, loss)
        if found[0] in GOOD:
            x[kept] = valid(layout, solved(found, layout.size))
        return self._allocated(raised(self._layout, x, self._layout.rate, needs), status)

    def _allocated(self, x: Array, status: str) -> Allocated:
        return Allocated(fractions=fractions(self._layout, x), objective=self._ratio(x), status=status)

    def _ratio(self, x: Array) -> float:
        price = float((x * self._prices).sum())
        return float((x * self._gains).sum()) / price if price > 0 else 0.0

    def _loss(self, ratio: float) -> Array:
        """What each column falls short of this ratio, relative to the largest gain."""
        loss: Array = (ratio * self._prices - self._gains) / self._gains.max()
        return loss

    def _most(self, layout: Layout, of_column: Array, needs: Array, loss: Array | None = None) -> Found:
        """The largest sum with the throughput that jobs need. `loss`: its sum is next to nothing."""
        program = Program()
        most(layout, program, of_column)
        if loss is not None:
            program.block(Cone.NONNEGATIVE, ROUNDING, (0, np.arange(layout.size), loss))
        rows, due = _due(layout, needs)
        program.block(Cone.NONNEGATIVE, -due, rows)
        return asked(self._solve, self._settings, program)

    def _best_ratio(self, needs: Array) -> Found:
        """The best ratio: X times a scale so large that it costs 1."""
        layout, program, dear = self._layout, Program(), self._prices.max()
        program.variables(layout.size, -self._gains / self._gains.max())
        scale = program.variables(1).start
        layout.add_validity(program, 0, scale)
        # The largest X of the best ratio uses all the time of one job or all GPUs of one type.
        program.block(Cone.NONNEGATIVE, dear / self._cheapest, (0, scale, 1.0))
        rows, due = _due(layout, needs)
        program.block(Cone.NONNEGATIVE, np.zeros(len(due)), rows, (np.arange(len(due)), scale, due))
        program.block(Cone.ZERO, 1.0, (0, np.arange(layout.size), self._prices / dear))
        return asked(self._solve, self._settings, program)

    def _relaxed(self, needs: Array) -> tuple[Array, str]:
        """What of each need can be had, where all of them cannot."""
        layout, program, some = self._layout, Program(), needs > 0
        program.variables(layout.size)
        short = np.array(program.variables(some.sum(), 1.0))
        layout.add_validity(program, 0)
        jobs = np.arange(len(short))
        program.block(Cone.NONNEGATIVE, np.zeros(len(short)), (jobs, short, -1.0))
        rows, due = _due(layout, needs)
        program.block(Cone.NONNEGATIVE, -due, (jobs, short, -due), rows)
        missing = solved(asked(self._solve, self._settings, program), program.size)[layout.size :]
        kept = needs.copy()
        kept[some] *= np.maximum(0.0, 1 - np.maximum(0.0, missing) - 1e-7)
        short_of = (missing > 1e-6).sum()
        who = "1 job cannot keep its" if short_of == 1 else f"{short_of} jobs cannot keep their"
        return kept, f"{who} deadline"


def _due(layout: Layout, needs: Array) -> tuple[Part, Array]:
    """A row for each job that needs throughput, and what is due: both divided by the need, so that a solver's
    tolerance is a part of that. Rows of jobs that need next to nothing are not scaled further."""
    unit = np.maximum(needs, LEAST * layout.fastest)
    return layout.terms(0, -layout.rate / unit[layout.job], needs > 0), (needs / unit)[needs > 0]
