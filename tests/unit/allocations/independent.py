# SPDX-License-Identifier: GPL-2.0-or-later
"""The allocations' problems stated a second time, with a modelling language. Nothing is shared with the code
under test but the types of the input."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np

from controller.policies.allocations.allocation import AllocationJob, Given


class Stated:
    """Variables and validity: a matrix for jobs, one for pairs."""

    def __init__(self, given: Given, *, pairs: bool = False, agnostic: str = "") -> None:
        self.given, self.types, self.jobs = given, given.types, given.jobs
        self.workers = np.array([given.workers[name] for name in self.types], float)
        self.size = np.array([job.gpus for job in self.jobs], float)
        usable = np.array([[self._can(job, name) for name in self.types] for job in self.jobs])
        rates = np.array([[job.throughput.get(name, 0.0) for name in self.types] for job in self.jobs])
        if agnostic == "ones":
            rates = np.ones_like(rates)
        if agnostic == "fastest":
            rates = np.repeat(rates.max(1)[:, None], len(self.types), 1)
        self.rates = rates * usable
        self.x = cp.Variable(self.rates.shape)
        self.valid = [self.x >= 0, cp.multiply(self.x, ~usable) == 0]
        used, time = self.size @ self.x, cp.sum(self.x, axis=1)
        self.throughput = cp.sum(cp.multiply(self.rates, self.x), axis=1)
        self.pairs = [pair for pair in given.pairs if pairs]
        self.y = None
        if self.pairs:
            number = {job.id: index for index, job in enumerate(self.jobs)}
            self.y = cp.Variable((len(self.pairs), len(self.types)))
            self.valid.append(self.y >= 0)
            both = np.zeros((len(self.jobs), len(self.pairs)))
            gang = np.zeros(len(self.pairs))
            for p, pair in enumerate(self.pairs):
                sides = [number[job] for job in pair.jobs]
                gang[p] = self.size[sides[0]]
                for side, job in enumerate(sides):
                    both[job, p] = 1
                    row = [pair.throughput.get(name, (0.0, 0.0))[side] for name in self.types]
                    unit = np.zeros(len(self.jobs))
                    unit[job] = 1
                    self.throughput = self.throughput + unit * (np.array(row) @ self.y[p])
                for t in range(len(self.types)):
                    if not all(usable[job, t] for job in sides):
                        self.valid.append(self.y[p, t] == 0)
            used, time = used + gang @ self.y, time + both @ cp.sum(self.y, axis=1)
            self.gang = gang
        self.valid += [used <= self.workers, time <= 1]
        self.equal = self.rates @ (self.workers / self.workers.sum())
        self.fastest = self.rates.max(1)

    def _can(self, job: AllocationJob, name: str) -> bool:
        return job.throughput.get(name, 0.0) > 0 and job.gpus <= self.given.workers[name]

    def prices(self) -> Any:
        price = np.array([self.given.prices[name] for name in self.types])
        total = cp.sum(cp.multiply(np.outer(self.size, price), self.x))
        if self.y is not None:
            total = total + cp.sum(cp.multiply(np.outer(self.gang, price), self.y))
        return total

    def best(self, goal: Any, *rows: Any, solver: str = "CLARABEL") -> float:
        problem = cp.Problem(goal, [*self.valid, *rows])
        exact = {"HIGHS": {}, "CLARABEL": {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}}
        value = problem.solve(solver=solver, **exact.get(solver, {}))
        assert problem.status in ("optimal", "optimal_inaccurate"), problem.status
        return float(value)


def las(given: Given, pairs: bool = False, agnostic: str = "") -> float:
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    weights = np.array([job.weight for job in s.jobs])
    return s.best(cp.Maximize(cp.min(cp.multiply(s.size / s.equal / weights, s.throughput))), solver="HIGHS")


def makespan(given: Given, pairs: bool = False, agnostic: str = "") -> float:
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    steps = np.array([job.steps_left for job in s.jobs])
    return 1 / s.best(cp.Maximize(cp.min(cp.multiply(1 / steps, s.throughput))), solver="HIGHS")


def finish_time(given: Given, pairs: bool = False, agnostic: str = "") -> float:
    """Bisection on the ratio, with linear problems."""
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    total = sum(job.weight for job in s.jobs)
    alone = np.array([s.workers * job.weight / total / job.gpus for job in s.jobs])
    alone /= np.maximum(1, alone.sum(1))[:, None]
    steps = np.array([job.steps_left for job in s.jobs])
    so_far = np.array([job.seconds_so_far for job in s.jobs])
    ideal = np.array([job.isolated_seconds for job in s.jobs]) + steps / (s.rates * alone).sum(1)
    needed = cp.Parameter(len(s.jobs), nonneg=True)
    slack = cp.Variable()
    problem = cp.Problem(
        cp.Maximize(slack), [*s.valid, cp.multiply(1 / s.fastest, s.throughput) >= cp.multiply(needed, slack)]
    )
    low, high = (
        float((so_far / ideal).max()),
        float(((so_far + steps / (s.rates * alone).sum(1)) / ideal).max()),
    )
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        needed.value = np.minimum(steps / np.maximum(middle * ideal - so_far, 1e-12) / s.fastest, 1e9)
        problem.solve(solver="HIGHS")
        if slack.value is not None and slack.value >= 1:
            high = middle
        else:
            low = middle
    return high


def max_throughput(given: Given, pairs: bool = False, agnostic: str = "", normalised: bool = False) -> float:
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    unit = 1 / s.fastest if normalised else np.ones(len(s.jobs))
    return s.best(cp.Maximize(unit @ s.throughput), solver="HIGHS")


def fifo(given: Given, pairs: bool = False, agnostic: str = "") -> float:
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    order = sorted(range(len(s.jobs)), key=lambda job: (s.jobs[job].arrival, s.jobs[job].id))
    behind = np.zeros(len(order))
    for rank, job in enumerate(order):
        behind[job] = len(order) - rank
    return s.best(cp.Maximize((behind / s.fastest) @ s.throughput), solver="HIGHS")


def sjf(given: Given, agnostic: str = "") -> float:
    """The least time that any one job can have if it has all that it can use."""
    s = Stated(given, agnostic=agnostic)
    return min(
        float(job.steps_left or 0) / s.best(cp.Maximize(s.throughput[number]), solver="HIGHS")
        for number, job in enumerate(s.jobs)
    )


def cost(
    given: Given,
    needs: dict[int, float] | None = None,
    pairs: bool = False,
    normalised: bool = False,
    agnostic: str = "",
) -> float:
    """Dinkelbach's method. Without needs the ratio is that of a normalised X, so that it is not 0 / 0."""
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    rows = [s.throughput[number] >= need for number, need in (needs or {}).items()]
    unit = 1 / s.fastest if normalised else np.ones(len(s.jobs))
    gain, price = unit @ s.throughput, s.prices()
    ratio = 0.0
    for _ in range(50):
        value = s.best(cp.Maximize(gain - ratio * price), *rows, solver="HIGHS")
        if value <= 1e-10 or price.value <= 1e-12:
            break
        ratio = float(gain.value / price.value)
    return ratio


def needs(given: Given) -> dict[int, float]:
    """The throughput that jobs with a deadline need, by number."""
    return {
        number: float(job.steps_left or 0) / job.slo_seconds_left
        for number, job in enumerate(given.jobs)
        if job.slo_seconds_left
    }


def shortfall(given: Given, wanted: dict[int, float], pairs: bool = False, agnostic: str = "") -> float:
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    parts = [cp.pos(1 - s.throughput[number] / need) for number, need in wanted.items()]
    return s.best(cp.Minimize(cp.sum(cp.hstack(parts))), solver="HIGHS")


def levels(given: Given, pairs: bool = False, agnostic: str = "") -> list[float]:
    """Water filling with a problem of its own for each job that may be a bottleneck."""
    s = Stated(given, pairs=pairs, agnostic=agnostic)
    level, frozen = np.zeros(len(s.jobs)), set[int]()
    u = cp.multiply(1 / s.equal, s.throughput)
    while len(frozen) < len(s.jobs):
        weight = np.zeros(len(s.jobs))
        for entity in given.entities:
            mine = [n for n, job in enumerate(s.jobs) if job.entity == entity.name and n not in frozen]
            if entity.policy == "fifo":
                for n in sorted(mine, key=lambda n: (s.jobs[n].arrival, s.jobs[n].id))[:1]:
                    weight[n] = entity.weight
            else:
                for n in mine:
                    weight[n] = entity.weight * s.jobs[n].weight / sum(s.jobs[k].weight for k in mine)
        t = cp.Variable()
        rows = [u >= level + cp.multiply(weight / s.size, t) - 1e-10]
        rise = max(0.0, s.best(cp.Maximize(t), *rows, solver="HIGHS"))
        level = level + rise * weight / s.size
        new = {
            n
            for n in range(len(s.jobs))
            if weight[n] > 0
            and s.best(cp.Maximize(u[n]), u >= level - 1e-10, solver="HIGHS")
            < level[n] + 1e-5 * (1 + level[n])
        }
        if not new:
            break
        frozen |= new
    return [float(each) for each in level]


def _largest_product(given: Given, agnostic: str) -> Any:
    """Logarithms of the throughputs, relative to each job's fastest type, where their sum is the largest."""
    s = Stated(given, agnostic=agnostic)
    relative = cp.multiply(1 / s.fastest, s.throughput)
    s.best(cp.Maximize(cp.sum(cp.log(relative))))
    return np.log(relative.value)


def nash(given: Given, agnostic: str = "") -> float:
    """The geometric mean of the throughputs, relative to each job's fastest type."""
    return math.exp(_largest_product(given, agnostic).mean())


def discounted(given: Given, agnostic: str = "") -> list[float]:
    """Of each job: its throughput where the product is the largest, times the product of the others' and by
    that without the job. All relative to the jobs' fastest types."""
    every, found = _largest_product(given, agnostic).sum(), []
    for job in given.jobs:
        others = tuple(other for other in given.jobs if other != job)
        without = _largest_product(replace(given, jobs=others), agnostic).sum() if others else 0.0
        found.append(math.exp(every - without))
    return found


def completion(given: Given, agnostic: str = "") -> float:
    """The least sum of completion times, with whole numbers: which job is the k-th from last on which GPU."""
    gpus = [given.types.index(name) for name in given.types for _ in range(given.workers[name])]
    rates = Stated(given, agnostic=agnostic).rates
    jobs = [number for number in range(len(given.jobs)) if any(rates[number, gpus])]
    slots = list(itertools.product(gpus, range(1, len(jobs) + 1)))
    price = np.array(
        [
            [
                k * float(given.jobs[job].steps_left or 0) / rates[job, gpu] if rates[job, gpu] else 1e9
                for gpu, k in slots
            ]
            for job in jobs
        ]
    )
    taken = cp.Variable(price.shape, boolean=True)
    rows = [cp.sum(taken, axis=1) == 1, cp.sum(taken, axis=0) <= 1]
    value = cp.Problem(cp.Minimize(cp.sum(cp.multiply(price, taken))), rows).solve(solver="HIGHS")
    return float(value)


def isolated(given: Given) -> list[list[float]]:
    """The fractions, by their definition."""
    total = sum(job.weight for job in given.jobs)
    rows = []
    for job in given.jobs:
        row = [given.workers[name] * job.weight / total / job.gpus for name in given.types]
        rows.append([part / max(1.0, sum(row)) for part in row])
    return rows
