# SPDX-License-Identifier: GPL-2.0-or-later
"""A solver's answer, checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controller.model import JobId
from controller.model.solving import Solution, SolutionStatus
from controller.policies.allocations.allocation import AllocationError, Fractions, Given, Jobs
from controller.policies.allocations.layout import Layout

TOLERANCE = 1e-4
"""An answer that is invalid by more than this fraction is nonsense."""
LEAST = 1e-7
"""Smaller fractions are none."""


def solved(solution: Solution, count: int) -> Sequence[float]:
    """Its values. Raises AllocationError where there are none, too few, or no numbers."""
    if solution.status not in (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE):
        raise AllocationError(_SENTENCES.get(solution.status, f"the solver failed: {solution.error}"))
    if len(solution.values) != count:
        raise AllocationError(f"the solver answered {len(solution.values)} values for {count} variables")
    if not all(map(math.isfinite, solution.values)):
        raise AllocationError("the solver answered numbers that are not finite")
    return solution.values


def valid(layout: Layout, answer: Sequence[float]) -> list[float]:
    """X, made exactly valid where the answer is valid but for rounding. Raises AllocationError where it is
    not. What reproduces Gavel's code (`layout.exact` is false) is only cut to 0…1, as there."""
    if answer and min(answer) < -TOLERANCE:
        raise AllocationError(f"the solver answered a fraction of {min(answer):g}")
    x = [min(1.0, max(0.0, fraction)) for fraction in answer]
    if layout.exact:
        x = [fraction if fraction >= LEAST else 0.0 for fraction in x]
    shrink = [1.0] * len(x)
    for row in layout.of_job:
        _fit(x, [(column, 1.0) for column, _ in row], 1.0, "a job more than all the time", shrink)
    for name, used in layout.capacity:
        limit = float(layout.given.workers.get(name, 0))
        _fit(x, used, limit, f"more GPUs of type {name} than there are", shrink)
    return [fraction * by for fraction, by in zip(x, shrink, strict=True)] if layout.exact else x


def _fit(
    x: Sequence[float], row: Sequence[tuple[int, float]], limit: float, what: str, shrink: list[float]
) -> None:
    """Note by how much each column of the row must shrink so that the sum is within the limit."""
    total = sum(x[column] * coefficient for column, coefficient in row)
    if total > limit * (1 + TOLERANCE) + TOLERANCE:
        raise AllocationError(f"the solver gave {what}: {total:g} instead of {limit:g}")
    if total > limit:
        for column, _ in row:
            shrink[column] = min(shrink[column], limit / total)


def fractions(layout: Layout, x: Sequence[float]) -> Fractions:
    """X by jobs and type. Jobs that can run nowhere have only zeros."""
    found: dict[Jobs, dict[str, float]] = {(job.id,): {} for job in layout.given.jobs}
    for (key, name), fraction in zip(layout.columns, x, strict=True):
        found.setdefault(layout.keys[key], {})[name] = fraction
    return {jobs: {name: mine.get(name, 0.0) for name in layout.given.types} for jobs, mine in found.items()}


def effective(given: Given, allocated: Fractions) -> Mapping[JobId, float]:
    """Effective throughput of each job, steps per second, at the throughputs that are given."""
    rates: dict[Jobs, Mapping[str, tuple[float, ...]]] = {
        (job.id,): {name: (rate,) for name, rate in job.throughput.items()} for job in given.jobs
    }
    rates.update({pair.jobs: pair.throughput for pair in given.pairs})
    total = {job.id: 0.0 for job in given.jobs}
    for jobs, by_type in allocated.items():
        for name, fraction in by_type.items():
            for job, rate in zip(jobs, rates[jobs].get(name, (0.0,) * len(jobs)), strict=True):
                total[job] += rate * fraction
    return total


_SENTENCES = {
    SolutionStatus.INFEASIBLE: "the problem has no solution (infeasible)",
    SolutionStatus.UNBOUNDED: "the problem has no optimum (unbounded)",
}
