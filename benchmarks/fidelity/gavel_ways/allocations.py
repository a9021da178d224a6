# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations as Gavel's code states them, with its approximations. Numbers are multiplied in its order, so
that even the last bits are the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.fidelity.gavel_ways.allox import Allox
from benchmarks.fidelity.gavel_ways.columns import Columns, seen, single, solved, valid
from benchmarks.fidelity.gavel_ways.first_come import FirstCome
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from benchmarks.fidelity.gavel_ways.solvers import solver
from controller.model import JobId
from controller.model.solving import Cone, ProblemKind, SolutionStatus
from controller.policies.allocations.allocation import (
    Allocated,
    Allocation,
    AllocationError,
    Given,
    Jobs,
    Pair,
    Solve,
)
from controller.policies.allocations.check import GOOD
from controller.policies.allocations.checked import fit, fractions
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.random_pairs import May, RandomPairs
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.shares import equal_throughputs, fixed, parts, summed
from controller.policies.allocations.solving import none_can_run, seconds_left
from controller.policies.allocations.sums import gains, units
from controller.policies.allocations.water_filling import Filling, fill
from controller.solver.problem_data import Found
from controller.solver.program import Program

LOW_SECONDS, HIGH_SECONDS = 100.0, 1e6
"""Where the bisection for the makespan begins."""
MOST_SECONDS = 1e12
"""Where it is given up."""


class MaxMin:
    """The least share is as large as it can be: throughput relative to that of an equal split, times GPUs, by
    weight."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings, ones=True)
        if not columns.jobs:
            return none_can_run(given)
        weight, gpus = columns.of_jobs("weight")[columns.job], columns.of_jobs("gpus")[columns.job]
        equal = equal_throughputs(columns)[columns.job]
        shares: Array = (columns.rate * ((1.0 / weight) * (1.0 / equal))) * gpus
        if self._settings.space_sharing:
            shares = single(single(columns.rate) / weight) * gpus / equal
        program, jobs = Program(), np.arange(len(columns.jobs))
        least = program.variables(1, 1.0).start  # negative
        first = program.variables(columns.size).start
        program.block(
            Cone.NONNEGATIVE, np.zeros(len(jobs)), (jobs, least, -1.0), columns.terms(first, -shares)
        )
        columns.add_validity(program, first)
        found = solve(ProblemKind.CONIC, program.arrays())
        x = valid(columns, solved(found, program.size)[first:])
        objective = float(columns.by_job(x, shares).min())
        return Allocated(fractions=fractions(columns, x), objective=objective, status=found[0].value)


class Makespan:
    """The time until the last job ends, by bisection: within 5 %."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings)
        if not columns.jobs:
            return none_can_run(given)
        left = seconds_left(columns, self._settings.assumed_seconds)
        if not left.any():
            return fixed(columns, isolated(columns), "no job has steps left")
        x = valid(columns, self._bisected(columns, left, solve))
        speeds, some = columns.by_job(x) / columns.fastest, left > 0
        if (speeds[some] <= 0).any():
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = float((left[some] / speeds[some]).max())
        return Allocated(fractions=fractions(columns, x), objective=most, status="within 5 %")

    def _bisected(self, columns: Columns, left: Array, solve: Solve) -> Array:
        """The last X with which all jobs end in time."""
        low, high, last, x = LOW_SECONDS, HIGH_SECONDS, HIGH_SECONDS, None
        while True:
            middle = (low + high) / 2.0
            found = solve(ProblemKind.CONIC, self._within(columns, left, middle).arrays())
            if found[0] is SolutionStatus.OPTIMAL:
                high, x = middle, solved(found, columns.size)
            else:
                low = middle
            if 1.05 * low < high:
                continue
            if x is not None:
                return x
            if last > MOST_SECONDS:
                raise AllocationError("the jobs do not end within any time (infeasible)")
            low, high, last = last, last * 10.0, last * 10.0

    def _within(self, columns: Columns, left: Array, seconds: float) -> Program:
        """Can all jobs end within this time?"""
        known = columns.of_jobs("steps_left")
        steps = np.where(np.isnan(known), left * columns.fastest, known)
        program = Program()
        program.variables(columns.size)
        columns.add_validity(program, 0)
        rates = single(columns.rate) if self._settings.space_sharing else columns.rate
        program.block(Cone.NONNEGATIVE, -steps / seconds, columns.terms(0, -rates))
        return program


class FinishTime:
    """The largest ratio of a job's finish time to that on its own part of the cluster is as small as it can
    be. Where the solver finds no answer, jobs have their own parts."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def isolated_rates(self, given: Given) -> Mapping[JobId, float]:
        """Steps per second of each job on its own part of the cluster; 0 for one that can run nowhere."""
        columns = seen(given, self._settings)
        rates = self._alone(columns).tolist() if columns.jobs else []
        none = dict.fromkeys((job.id for job in given.jobs), 0.0)
        return none | dict(zip(columns.index, rates, strict=True))

    def _alone(self, columns: Columns) -> Array:
        return summed(columns.best * isolated(columns))

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings)
        if not columns.jobs:
            return none_can_run(given)
        speeds, rate = columns.rate, self._alone(columns)
        if self._settings.space_sharing:
            # They are rounded, and the weights count twice.
            speeds = single(single(columns.rate) / columns.of_jobs("weight")[columns.job])
        so_far, left = columns.of_jobs("seconds_so_far"), columns.of_jobs("steps_left")
        known = columns.of_jobs("isolated_seconds")
        alone = np.where(np.isnan(known), so_far, known) + left / rate
        scale = np.divide(1.0, alone, out=np.zeros_like(alone), where=alone > 0)
        endless = np.isnan(left)
        done, part = np.where(endless, 0.0, so_far * scale), np.where(endless, rate, left * scale)
        if not part.any():
            return fixed(columns, isolated(columns), "no job has steps left")
        jobs, program = np.arange(len(columns.jobs)), Program()
        if len(jobs) == 1:
            # There is no variable for the largest ratio.
            inverse = program.variables(1, part).start
            first = program.variables(columns.size).start
        else:
            largest = program.variables(1, 1.0).start
            first = program.variables(columns.size).start
            inverse = program.variables(len(jobs)).start
            program.block(Cone.NONNEGATIVE, -done, (jobs, largest, -1.0), (jobs, inverse + jobs, part))
        columns.add_validity(program, first)
        # inverse * speed >= 1
        of_job, variables = 3 * columns.job, first + columns.column
        program.block(
            Cone.SECOND_ORDER,
            np.tile([0.0, 0.0, 2.0], len(jobs)),
            (of_job, variables, -speeds),
            (of_job + 1, variables, -speeds),
            (3 * jobs, inverse + jobs, -1.0),
            (3 * jobs + 1, inverse + jobs, 1.0),
            rows_each=3,
        )
        found = solve(ProblemKind.CONIC, program.arrays())
        if found[0] not in GOOD:
            return fixed(columns, isolated(columns), "isolated")
        x = valid(columns, solved(found, program.size)[first : first + columns.size])
        speed = columns.by_job(x, speeds)
        with np.errstate(divide="ignore"):
            rest = np.divide(part, speed, out=np.zeros_like(speed), where=part > 0)
        objective = min(float((done + rest).max()), 1e300)
        return Allocated(fractions=fractions(columns, x), objective=objective, status=found[0].value)


class MaxThroughput:
    """The largest sum of all throughputs."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings, ones=True)
        if not columns.jobs:
            return none_can_run(given)
        of_column = gains(columns, units(columns, self._settings.normalised))
        found = _most(columns, of_column, np.zeros(len(columns.jobs)), solve)
        return _of_sum(columns, found, of_column, found[0].value)


class Cost:
    """The largest sum of throughput / price; without any deadline where they cannot all be kept."""

    def __init__(self, settings: WaySettings, slo: bool) -> None:
        self._settings, self._slo = settings, slo

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings)
        if not columns.jobs:
            return none_can_run(given)
        prices = np.array(
            [given.prices.get(name, 0.0) or max(given.prices.values()) for name in columns.types]
        )
        left, seconds = columns.of_jobs("steps_left"), columns.of_jobs("slo_seconds_left")
        late = self._slo & (left > 0) & (seconds > 0)
        needs = np.divide(left, seconds, out=np.zeros_like(left), where=late)
        per_price = gains(columns, units(columns, self._settings.normalised)) / prices[columns.base_of]
        found, status = _most(columns, per_price, needs, solve), "optimal"
        if found[0] is SolutionStatus.INFEASIBLE and needs.any():
            found, status = _most(columns, per_price, np.zeros_like(needs), solve), "without deadlines"
        return _of_sum(columns, found, per_price, status)


def _most(columns: Columns, of_column: Array, needs: Array, solve: Solve) -> Found:
    """The largest sum with the throughput that jobs need."""
    program = Program()
    program.variables(columns.size, -of_column)
    columns.add_validity(program, 0)
    some = needs > 0
    program.block(Cone.NONNEGATIVE, -needs[some], columns.terms(0, -columns.rate, some))
    return solve(ProblemKind.CONIC, program.arrays())


def _of_sum(columns: Columns, found: Found, of_column: Array, status: str) -> Allocated:
    x = valid(columns, solved(found, columns.size))
    return Allocated(fractions=fractions(columns, x), objective=float((x * of_column).sum()), status=status)


def isolated(columns: Columns) -> Array:
    """Each job's time by type on a part of the cluster of its own. All parts are equal."""
    rows = (columns.limits / max(1, len(columns.jobs))) / columns.of_jobs("gpus")[:, None]
    own: Array = rows / np.maximum(1.0, summed(rows))[:, None]
    return own


class Isolated:
    """Each job has that part."""

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = Columns(given)
        return fixed(columns, isolated(columns))


class Proportional:
    """Each job has the same part of every type's time, also where that is more than there is."""

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = Columns(given)
        return fixed(columns, parts(columns))


class WaterFilling:
    """Levels are in equal splits, and X is taken as it is."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = seen(given, self._settings, ones=True)
        return fill(_Splits(columns, AllocationSettings(), solve)) if columns.jobs else none_can_run(given)


class _Splits(Filling):
    def units_of(self, parts: Array) -> Array:
        return np.ones(len(self.layout.jobs))

    def answer(self, x: Array) -> Allocated:
        return self.allocated(x)

    def rise(self, weights: Array) -> tuple[Array, bool]:
        assert isinstance(self.layout, Columns)
        rises = weights / self.layout.of_jobs("gpus")
        answer, rise = self.risen(rises)
        x = valid(self.layout, answer)
        return x, self.reach(rises * (rise if rise > 0 else 0.0), fit(self.layout, x))


class AnyPairs(RandomPairs):
    """Any two jobs are drawn, as often as there are jobs: where their sizes differ nothing comes of it, and
    some jobs find no partner. A pair is kept while its gains sum to 1 or more over all types."""

    def __init__(self, settings: WaySettings) -> None:
        super().__init__(AllocationSettings(seed=settings.seed))

    def layout(self, given: Given) -> Layout:
        return Columns(given)

    def good(self, layout: Layout, pair: Pair) -> bool:
        both = (pair.throughput.get(name, (0.0, 0.0)) for name in layout.types)
        return min(map(min, both), default=0.0) > 0 and sum(self.gains(layout, pair)) >= 1.0

    def can(self, layout: Layout, jobs: Jobs, name: str) -> bool:
        return True

    def drawn(self, jobs: Sequence[JobId], draw: random.Random, may: May) -> Iterator[tuple[JobId, JobId]]:
        waiting = list(jobs)
        for _ in jobs:
            if len(waiting) > 1 and may(*(two := draw.sample(waiting, 2))):
                waiting = [job for job in waiting if job not in two]
                yield two[0], two[1]


WAYS: Mapping[str, Callable[[WaySettings], Allocation]] = {
    "allox": Allox,
    "gavel-cost": lambda settings: Cost(settings, slo=False),
    "gavel-cost-slo": lambda settings: Cost(settings, slo=True),
    "gavel-fifo": FirstCome,
    "gavel-ftf": FinishTime,
    "gavel-gandiva": AnyPairs,
    "gavel-hierarchical": WaterFilling,
    "gavel-las": MaxMin,
    "gavel-makespan": Makespan,
    "gavel-max-throughput": MaxThroughput,
    "isolated": lambda _settings: Isolated(),
    "proportional": lambda _settings: Proportional(),
}
"""By the name of the preset that has the problem of the paper."""


def allocate(way: str, settings: WaySettings, given: Given) -> Allocated:
    """The answer of a way. Raises AllocationError."""
    return WAYS[way](settings).allocate(given, solver(settings.solver))
