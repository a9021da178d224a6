# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations that maximise a weighted sum of throughputs: in all, or the first come first."""

import numpy as np

from controller.policies.allocations.allocation import Allocated, Solve
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.solving import LaidOut, asked
from controller.solver.program import Program


def gains(layout: Layout, weights: Array) -> Array:
    """What each column adds: the throughputs of its jobs, each times its weight."""
    return np.bincount(layout.column, weights[layout.job] * layout.rate, layout.size)


def most(layout: Layout, program: Program, of_column: Array) -> None:
    """The program: the largest sum. Gains are divided by their largest, so that all numbers are small."""
    program.variables(layout.size, -of_column / (of_column.max(initial=0.0) or 1.0))
    layout.add_validity(program, 0)


def units(layout: Layout, normalised: bool) -> Array:
    """What a step of each job counts."""
    return 1 / layout.fastest if normalised else np.ones(len(layout.jobs))


class MaxThroughput(LaidOut):
    """Maximises the sum of all throughputs."""

    ones = True

    def weights(self, layout: Layout) -> Array:
        """By which the throughput of each job counts."""
        return units(layout, self._settings.normalised)

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        of_column, program = gains(layout, self.weights(layout)), Program()
        most(layout, program, of_column)
        found = asked(solve, self._settings, program)
        x = valid(layout, solved(found, program.size))
        objective = float((x * of_column).sum())
        return Allocated(fractions=fractions(layout, x), objective=objective, status=found[0].value)


class Fifo(MaxThroughput):
    """Maximises the sum of throughputs, each relative to the job's fastest type, times the number of jobs
    from this one to the last by arrival."""

    def weights(self, layout: Layout) -> Array:
        behind = np.empty(len(layout.jobs))
        behind[layout.by_arrival] = np.arange(len(layout.jobs), 0, -1)
        weights: Array = behind / layout.fastest
        return weights
