# SPDX-License-Identifier: GPL-2.0-or-later
"""What each job gets where no problem is solved: the yardsticks of the other allocations, and policies of
their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.model import JobId
from controller.model.solving import Solution
from controller.policies.allocations.allocation import Allocated, Fractions, Given, Jobs
from controller.policies.allocations.checked import fractions
from controller.policies.allocations.layout import Layout


def equal_throughputs(layout: Layout) -> list[float]:
    """Throughput of each job if every type had the same part of its time as of the cluster's GPUs."""
    workers, count = _workers(layout), len(layout.jobs)
    whole = _sum([gpus / count for gpus in workers])
    parts = [(name, (gpus / count) / whole) for name, gpus in _by_type(layout, workers)]
    return [_sum([rates.get(name, 0.0) * part for name, part in parts]) for rates in layout.best]


def isolated(layout: Layout) -> list[dict[str, float]]:
    """Each job's time by type on a part of the cluster of its own. The parts are as large as the jobs'
    weights; where Gavel's code is reproduced they are equal."""
    workers = _workers(layout)
    total = sum(job.weight for job in layout.jobs)
    rows = []
    for job in layout.jobs:
        part = job.weight / total if layout.exact else 1 / len(layout.jobs)
        if not layout.exact:
            row = [(gpus / len(layout.jobs)) / job.gpus for gpus in workers]
        else:
            row = [gpus * part / job.gpus for gpus in workers]
        most = max(1.0, _sum(row))
        rows.append({name: fraction / most for name, fraction in zip(layout.physical, row, strict=True)})
    return rows


def isolated_throughputs(layout: Layout) -> list[float]:
    """Throughput of each job of the layout on its own part of the cluster."""
    return [
        _sum([rates.get(name, 0.0) * fraction for name, fraction in row.items()])
        for rates, row in zip(layout.best, isolated(layout), strict=True)
    ]


def isolated_rates(given: Given) -> Mapping[JobId, float]:
    """The same by job, steps per second; 0 for a job that can run nowhere. Raises AllocationError."""
    layout = Layout(given)
    by_job = {job.id: rate for job, rate in zip(layout.jobs, isolated_throughputs(layout), strict=True)}
    return {job.id: by_job.get(job.id, 0.0) for job in given.jobs}


def fixed(layout: Layout, rows: Sequence[Mapping[str, float]], status: str = "optimal") -> Allocated:
    """These rows as an allocation. Its objective is the number of GPUs in use."""
    x = [rows[key].get(name, 0.0) for key, name in layout.columns]
    used = sum(fraction * layout.sizes[key] for fraction, (key, _) in zip(x, layout.columns, strict=True))
    return Allocated(fractions=fractions(layout, x), objective=used, status=status)


def fallback(given: Given) -> Allocated:
    """A valid allocation that needs no solver. Raises AllocationError where the input is wrong."""
    layout = Layout(given)
    return fixed(layout, isolated(layout), "fallback")


class Isolated:
    """Every job has a part of the cluster to itself, by its weight."""

    def __init__(self, exact: bool = True) -> None:
        self._exact = exact

    def begin(self, given: Given) -> Allocated:
        layout = Layout(given, exact=self._exact)
        return fixed(layout, isolated(layout))

    def go_on(self, given: Given, memory: object, solution: Solution) -> Allocated:
        return self.begin(given)


class Proportional:
    """Every job has the same part of its time on each type, in proportion to the type's GPUs."""

    def __init__(self, exact: bool = True) -> None:
        self._exact = exact

    def begin(self, given: Given) -> Allocated:
        layout = Layout(given, exact=self._exact)
        workers = _workers(layout)
        count = len(layout.jobs) or 1
        whole = _sum([gpus / count for gpus in workers])
        row = {name: (gpus / count) / whole for name, gpus in _by_type(layout, workers)}
        if self._exact:
            part = min(1.0, sum(workers) / (sum(layout.sizes) or 1))
            row = {name: fraction * part for name, fraction in row.items()}
        return fixed(layout, [row] * len(layout.jobs))

    def go_on(self, given: Given, memory: object, solution: Solution) -> Allocated:
        return self.begin(given)


def as_fractions(given: Given, rows: Mapping[Jobs, Mapping[str, float]]) -> Fractions:
    """These rows, with zeros for all other jobs and types."""
    found: dict[Jobs, Mapping[str, float]] = {
        (job.id,): dict.fromkeys(given.types, 0.0) for job in given.jobs
    }
    for jobs, row in rows.items():
        found[jobs] = {name: row.get(name, 0.0) for name in given.types}
    return found


def _workers(layout: Layout) -> list[int]:
    return [layout.workers(name) for name in layout.physical]


def _by_type(layout: Layout, workers: Sequence[int]) -> zip[tuple[str, int]]:
    return zip(layout.physical, workers, strict=True)


def _sum(numbers: Sequence[float]) -> float:
    """From left to right, without the compensation of later Pythons: the last bit counts for comparisons."""
    total = 0.0
    for number in numbers:
        total += number
    return total
