# SPDX-License-Identifier: GPL-2.0-or-later
"""How an allocation's variables are numbered, and the rows that make it valid."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from controller.model import JobId
from controller.model.solving import Cone, Program
from controller.policies.allocations.allocation import AllocationJob, Given, Jobs
from controller.policies.allocations.check import check

Row = list[tuple[int, float]]
MANY = 1 << 60


class Layout:
    """The columns of X: each a single job or a pair on one GPU type.

    Columns go by type, in the order of the names; within a type single jobs come first, by id, then pairs.
    The order of the input makes no difference, so equal problems have the same optimum.
    """

    def __init__(self, given: Given, *, pairs: bool = False, exact: bool = True) -> None:
        """
        Args:
            pairs: pairs have columns too.
            exact: no columns for what can never run: a type where a job has no throughput or that has fewer
                GPUs than its gang, and pairs that are no better than taking turns.

        Raises:
            AllocationError: the input is wrong.
        """
        check(given)
        self.given = given
        self.types = tuple(sorted(given.types))
        self.exact = exact
        limits = {name: self.workers(name) if exact else MANY for name in self.types}
        usable = {
            job.id: {
                name: rate
                for name, limit in limits.items()
                if (rate := job.throughput.get(name, 0.0)) > 0 and job.gpus <= limit
            }
            for job in given.jobs
        }
        self.jobs: list[AllocationJob] = sorted(
            (job for job in given.jobs if usable[job.id]), key=lambda job: job.id
        )
        """Those that can run somewhere."""
        self.usable: list[dict[str, float]] = [usable[job.id] for job in self.jobs]
        """Throughput of each alone, on the types where it can run."""
        self.index: dict[JobId, int] = {job.id: number for number, job in enumerate(self.jobs)}
        self.keys: list[Jobs] = [(job.id,) for job in self.jobs]
        self.sizes: list[int] = [job.gpus for job in self.jobs]
        rates: list[dict[str, tuple[float, ...]]] = [
            {name: (rate,) for name, rate in by_type.items()}
            if exact
            else {name: (by_type.get(name, 0.0),) for name in self.types}
            for by_type in self.usable
        ]
        if pairs:
            for pair in sorted(given.pairs, key=lambda pair: pair.jobs):
                if shared := self._pair(pair.jobs, pair.throughput):
                    self.keys.append(pair.jobs)
                    self.sizes.append(self.jobs[self.index[pair.jobs[0]]].gpus)
                    rates.append(shared)
        self.columns: list[tuple[int, str]] = []
        """Which key on which type."""
        self.of_job: list[Row] = [[] for _ in self.jobs]
        """The throughput of each job in each of its columns."""
        members = [tuple(self.of_job[self.index[job]] for job in jobs) for jobs in self.keys]
        for name in self.types:
            for key, by_type in enumerate(rates):
                if (of_key := by_type.get(name)) is not None:
                    for row, rate in zip(members[key], of_key, strict=True):
                        row.append((len(self.columns), rate))
                    self.columns.append((key, name))

    def workers(self, name: str) -> int:
        """GPUs that a type, also a virtual one, draws on."""
        return self.given.workers.get(self.given.draws_on.get(name, name), 0)

    @cached_property
    def physical(self) -> tuple[str, ...]:
        """Types that have GPUs of their own."""
        return tuple(name for name in self.types if name not in self.given.draws_on)

    @cached_property
    def capacity(self) -> list[tuple[str, Row]]:
        """By physical type: the GPUs that each column takes of it."""
        rows: dict[str, Row] = {name: [] for name in self.physical}
        for column, (key, name) in enumerate(self.columns):
            rows[self.given.draws_on.get(name, name)].append((column, float(self.sizes[key])))
        return list(rows.items())

    def add_validity(self, program: Program, first: int, scale: int | None = None) -> None:
        """The rows of a valid X, whose variables begin with `first`: none below 0, no more GPUs than there
        are, no job more than all the time. `scale`: a variable that multiplies all limits."""

        def limited(row: Row, limit: float) -> tuple[Row, float]:
            moved = [(first + column, coefficient) for column, coefficient in row]
            return (moved, limit) if scale is None else ([*moved, (scale, -limit)], 0.0)

        def rows() -> Iterator[tuple[Row, float]]:
            for column in range(len(self.columns)):
                yield [(first + column, -1.0)], 0.0
            for name, row in self.capacity:
                yield limited(row, float(self.given.workers.get(name, 0)))
            for row in self.of_job:
                yield limited([(column, 1.0) for column, _ in row], 1.0)

        program.cone(Cone.NONNEGATIVE, rows())

    def throughputs(self, x: Sequence[float]) -> list[float]:
        """Effective throughput of each job."""
        return [sum(rate * x[column] for column, rate in row) for row in self.of_job]

    def fastest(self, job: int) -> float:
        """Throughput on its best type, alone, of the job of this number."""
        return max(self.usable[job].values())

    @cached_property
    def best(self) -> list[dict[str, float]]:
        """Throughput of each job on the physical types, in its best placement, where it can run."""
        if not self.given.draws_on:
            return self.usable
        found: list[dict[str, float]] = []
        for by_type in self.usable:
            physical: dict[str, float] = {}
            for name, rate in by_type.items():
                base = self.given.draws_on.get(name, name)
                physical[base] = max(rate, physical.get(base, 0.0))
            found.append(physical)
        return found

    def _pair(
        self, jobs: tuple[JobId, JobId], throughput: Mapping[str, tuple[float, float]]
    ) -> dict[str, tuple[float, ...]]:
        """The throughputs of a pair by type; empty where it is never to run."""
        if not all(job in self.index for job in jobs):
            return {}
        first_job, second_job = (self.index[job] for job in jobs)
        if self.sizes[first_job] != self.sizes[second_job]:
            return {}
        one, other = self.usable[first_job], self.usable[second_job]
        if not self.exact:
            return {name: throughput.get(name, (0.0, 0.0)) for name in self.types}
        return {
            name: (first, second)
            for name, (first, second) in throughput.items()
            if name in one and name in other and first > 0 and second > 0
            if first / one[name] + second / other[name] > 1
        }


def single(number: float) -> float:
    """Rounded to the 32 bits that Gavel's code has for the throughputs of pairs."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
