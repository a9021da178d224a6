# SPDX-License-Identifier: GPL-2.0-or-later
"""A solver's answer, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from controller.model import JobId
from controller.policies.allocations.allocation import AllocationError, Fractions, Given, Jobs
from controller.policies.allocations.check import TOLERANCE, check_answer
from controller.policies.allocations.layout import Array, Layout

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

LEAST = 1e-7
"""Smaller fractions are none."""


def solved(found: Found, count: int) -> Array:
    """Its values. Raises AllocationError where there are none, too few, or no numbers."""
    check_answer(found, count)
    return np.asarray(found[1], float)


def valid(layout: Layout, answer: Array) -> Array:
    """X, made exactly valid where the answer is valid but for rounding. Raises AllocationError where it is
    not."""
    if answer.min(initial=0.0) < -TOLERANCE:
        raise AllocationError(f"the solver answered a fraction of {answer.min():g}")
    if answer.max(initial=0.0) > 1 + TOLERANCE:
        raise AllocationError(f"the solver gave a fraction of {answer.max():g}")
    x = np.clip(answer, 0.0, 1.0)
    x[x < LEAST] = 0.0
    return fit(layout, x)


def fit(layout: Layout, x: Array) -> Array:
    """X with no job above all its time and no type above its GPUs. Raises AllocationError where that takes
    more than rounding."""
    ones = np.ones(len(layout.job))
    time = _room(layout.by_job(x, ones), np.ones(len(layout.jobs)), "a job more than all the time")
    used = np.bincount(layout.base_of, layout.gpus * x, len(layout.limits))
    shrink = _room(used, layout.limits, "more GPUs of a type than there are")[layout.base_of]
    np.minimum.at(shrink, layout.column, time[layout.job])
    return x * shrink


def raised(layout: Layout, x: Array, gains: Array, needs: Array) -> Array:
    """X in which no job has less than it needs: what is missing is added where the job gains most. For a job
    that needs next to nothing all of it can be missing, by a solver's tolerance and by LEAST. Raises
    AllocationError where that takes more than rounding. `gains`: by term; `needs`: by job."""
    missing, x = np.maximum(0.0, needs - layout.by_job(x, gains)), x.copy()
    by_gain = np.lexsort((gains, layout.job))
    best = by_gain[np.flatnonzero(np.diff(layout.job, append=-1))]  # terms are by job
    np.add.at(x, layout.column[best], missing / gains[best])
    return fit(layout, x)


def _room(totals: Array, limits: Array, what: str) -> Array:
    """By how much what makes up each total must shrink to be within its limit."""
    for number in np.flatnonzero(totals > limits * (1 + TOLERANCE) + TOLERANCE).tolist():
        raise AllocationError(f"the solver gave {what}: {totals[number]:g} instead of {limits[number]:g}")
    return np.divide(limits, totals, out=np.ones_like(totals), where=totals > limits)


def as_fractions(given: Given, rows: Mapping[Jobs, Mapping[str, float]]) -> Fractions:
    """These rows, with zeros for all other jobs and types."""
    found: dict[Jobs, Mapping[str, float]] = {
        (job.id,): dict.fromkeys(given.types, 0.0) for job in given.jobs
    }
    for jobs, row in rows.items():
        found[jobs] = {name: row.get(name, 0.0) for name in given.types}
    return found


def fractions(layout: Layout, x: Array) -> Fractions:
    """X by jobs and type."""
    names = layout.given.types
    place = np.array([names.index(name) for name in layout.types])
    table = np.zeros((len(layout.keys), len(names)))
    table[layout.key_of, place[layout.type_of]] = x
    rows = [dict(zip(names, row, strict=True)) for row in table.tolist()]
    return as_fractions(layout.given, dict(zip(layout.keys, rows, strict=True)))


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
