# SPDX-License-Identifier: GPL-2.0-or-later
"""Hierarchical max-min fairness by water filling: Pareto-efficient, over entities and their jobs."""

import numpy as np

from controller.model.solving import Cone, ProblemKind
from controller.policies.allocations.allocation import Allocated, Entity, Solve
from controller.policies.allocations.checked import LEAST, fit, fractions, raised, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.shares import equal_throughputs
from controller.policies.allocations.solving import LaidOut, asked
from controller.solver.program import Program

RISES = 1e-5
"""A level can rise if it can by this part of itself and of its unit. To stay too early costs a job no more
than that; to go on too late holds up all others."""


class WaterFilling(LaidOut):
    """Raises the levels of all jobs together, by their weights, until some can rise no further; those stay,
    and the others go on. A job's level is its throughput relative to an equal split.

    After each rise, problems of their own find out who can still rise: the largest sum of further rises shows
    some, the same for the others shows more, until it is nothing. Gavel's code has one problem with whole
    numbers for that. By convexity, jobs that can rise one by one can rise together.
    """

    ones = True

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        return fill(Filling(layout, self._settings, solve))


class Filling:
    """The levels, and the problems that they are in."""

    def __init__(self, layout: Layout, settings: AllocationSettings, solve: Solve) -> None:
        self.layout, self._settings, self._solve = layout, settings, solve
        self.levels = np.zeros(len(layout.jobs))
        parts = layout.rate / equal_throughputs(layout)[layout.job]
        self.units = self.units_of(parts)
        self._parts = parts / self.units[layout.job]
        """What each column adds to a job's level, by term."""

    def units_of(self, parts: Array) -> Array:
        """Of the levels, by job: the level on its best type, since an equal split can be next to nothing
        where others can use more GPUs. `parts`: by term, in equal splits."""
        return self.layout.most(parts)

    def answer(self, x: Array) -> Allocated:
        """X without what is above the levels: for a job with a large unit it can be many equal splits."""
        reached, kept = self.reached(x), np.zeros(self.layout.size)
        parts = self.levels / np.where(reached > 0, reached, 1.0)
        np.maximum.at(kept, self.layout.column, parts[self.layout.job])
        return self.allocated(x * kept)

    def allocated(self, x: Array) -> Allocated:
        """The objective is the sum of the levels, in equal splits."""
        objective = float((self.reached(x) * self.units).sum())
        return Allocated(fractions=fractions(self.layout, x), objective=objective, status="optimal")

    def reached(self, x: Array) -> Array:
        return self.layout.by_job(x, self._parts)

    def rise(self, weights: Array) -> tuple[Array, bool]:
        """Raise the levels together, as far as they can. The X that has them, and whether any has risen."""
        rises = weights / self.layout.of_jobs("gpus") / self.units
        rises = rises / rises.max()
        answer, rise = self.risen(rises)
        x, rises = valid(self.layout, answer), rises * (rise if rise > LEAST else 0.0)
        x = raised(self.layout, x, self._parts, self.levels + rises)
        return x, self.reach(rises, fit(self.layout, x))

    def risen(self, rises: Array) -> tuple[Array, float]:
        """The answer of the problem: X, and how many times these rises it has."""
        program = Program()
        together = program.variables(1, -1.0).start
        first = program.variables(self.layout.size).start
        self._add_levels(program, first, np.arange(len(rises)), together, rises)
        values = solved(asked(self._solve, self._settings, program), program.size)
        return values[first:], float(values[together])

    def reach(self, rises: Array, x: Array) -> bool:
        """Add these to the levels, which are never above what a valid X has: then the next problem has a
        solution. Returns whether any has risen."""
        before, self.levels = self.levels, np.minimum(self.levels + rises, self.reached(x))
        return bool((self.levels > before + (before + 1) * RISES).any())

    def cannot_rise(self, rising: Array) -> Array:
        """Which of these jobs can rise no further, if no level falls."""
        undecided, corner, tried = np.flatnonzero(rising), False, False
        while True:
            by = self._further(undecided, corner)
            still, tried = undecided[by <= (self.levels[undecided] + 1) * RISES], tried or corner
            if 0 < len(still) < len(undecided):
                undecided, corner = still, False
            elif not len(still) and not tried:
                # A job stopped the last rise.
                undecided, corner = np.flatnonzero(rising), True
            else:
                break
        return np.isin(np.arange(len(rising)), still)

    def _further(self, undecided: Array, corner: bool) -> Array:
        """How much each of these jobs can rise, where the sum is largest. `corner`: by the simplex method."""
        program, solve = Program(), self._solve
        program.variables(self.layout.size)
        further = program.variables(len(undecided), -1.0)
        none_below = (np.arange(len(undecided)), np.array(further), -1.0)
        program.block(Cone.NONNEGATIVE, np.zeros(len(undecided)), none_below)
        self._add_levels(program, 0, undecided, np.array(further), 1.0)
        found = (
            solve(ProblemKind.VERTEX, program.arrays()) if corner else asked(solve, self._settings, program)
        )
        return solved(found, program.size)[further.start :]

    def _add_levels(
        self, program: Program, first: int, jobs: Array, variables: Array | int, rises: Array | float
    ) -> None:
        """The level of each job, and its rise: the variable times `rises`. And a valid X."""
        reached = self.layout.terms(first, -self._parts)
        program.block(Cone.NONNEGATIVE, -self.levels, reached, (jobs, variables, rises))
        self.layout.add_validity(program, first)


def fill(filling: Filling) -> Allocated:
    """Raise the levels until no job can rise."""
    layout = filling.layout
    frozen = np.zeros(len(layout.jobs), bool)
    while True:
        weights = _weights(layout, frozen)
        x, rose = filling.rise(weights)
        stuck = filling.cannot_rise(weights > 0)
        frozen |= stuck
        # Where none is stuck, the rise came to its end too early; another goes on.
        if frozen.all() or not (stuck.any() or rose):
            return filling.answer(x)


def _weights(layout: Layout, frozen: Array) -> Array:
    """How fast each level rises: the entity's weight, split among its jobs that are not frozen, or all of it
    for the first of them."""
    weights, own = np.zeros(len(layout.jobs)), layout.of_jobs("weight")
    names = np.array([job.entity for job in layout.jobs])
    for entity in layout.given.entities or (Entity(""),):
        mine = np.flatnonzero(~frozen & ((names == entity.name) | (not layout.given.entities)))
        if not len(mine):
            continue
        if entity.policy == "fifo":
            weights[next(job for job in layout.by_arrival if job in mine)] = entity.weight
        else:
            weights[mine] = entity.weight * own[mine] / sum(own[mine].tolist())
    return weights
