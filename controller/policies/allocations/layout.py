# SPDX-License-Identifier: GPL-2.0-or-later
"""How an allocation's variables are numbered, and the rows that make it valid."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from controller.model import JobId
from controller.model.solving import Cone
from controller.policies.allocations.allocation import AllocationJob, Given, Jobs, Pair
from controller.policies.allocations.check import check
from controller.solver.program import Part, Program

Array: TypeAlias = NDArray[Any]
Alike: TypeAlias = Callable[[AllocationJob], float]
"""The throughput of a job on every type, for an allocation that takes all types for equally fast."""


class Layout:
    """The columns of X: each a single job or a pair on one GPU type.

    Columns go by type, in the order of the names; within a type single jobs come first, by id, then pairs.
    The order of the input makes no difference, so equal problems have the same optimum. There are no columns
    for what can never run: a type where a job has no throughput or that has fewer GPUs than its gang, and
    pairs that are no better than taking turns.
    """

    def __init__(self, given: Given, *, pairs: bool = False, alike: Alike | None = None) -> None:
        """
        Args:
            pairs: pairs have columns too.
            alike: where it is given, it takes the place of the throughputs.

        Raises:
            AllocationError: the input is wrong.
        """
        check(given)
        self.given = given
        self.types = tuple(sorted(given.types))
        self.physical = tuple(name for name in self.types if name not in given.draws_on)
        """Types that have GPUs of their own."""
        self.base = np.array([self.physical.index(self.drawn(name)) for name in self.types])
        """By type: the number of the physical type whose GPUs it draws on."""
        self.limits = np.array([float(self.workers(name)) for name in self.physical])
        """GPUs by physical type."""
        jobs = sorted(given.jobs, key=lambda job: job.id)
        rows = [[job.throughput.get(name, 0.0) for name in self.types] for job in jobs]
        rates = np.array(rows, float).reshape(-1, len(self.types))
        if alike is not None:
            everywhere = np.array([alike(job) for job in jobs], float).reshape(-1, 1)
            rates = np.where(rates > 0, everywhere, 0.0)
        sizes = np.array([job.gpus for job in jobs], float).reshape(-1, 1)
        rates = np.where(sizes <= self.limits[self.base], rates, 0.0)
        can = np.flatnonzero(rates.any(axis=1))
        self.jobs = [jobs[number] for number in can.tolist()]
        """Those that can run somewhere."""
        self.rates = rates[can]
        """Throughput of each alone, by type. 0: it cannot run there."""
        self.index: dict[JobId, int] = {job.id: number for number, job in enumerate(self.jobs)}
        self.keys: list[Jobs] = [(job.id,) for job in self.jobs]
        self.sizes = self.of_jobs("gpus")
        """GPUs of each key."""
        usable = self.rates > 0
        members, shared = np.zeros((0, 2), int), np.zeros((0, len(self.types), 2))
        if pairs:
            members, shared = self._pairs()
            usable = np.concatenate([usable, (shared > 0).all(axis=2)])
            self.keys += [(self.jobs[one].id, self.jobs[other].id) for one, other in members.tolist()]
            self.sizes = np.concatenate([self.sizes, self.sizes[members[:, 0]]])
        self.type_of, self.key_of = np.nonzero(usable.T)
        """By column: numbers of its type and key."""
        # Terms: the throughput of each job in each of its columns, by job and column.
        alone = np.flatnonzero(self.key_of < len(self.jobs))
        both = np.flatnonzero(self.key_of >= len(self.jobs))
        key, on = self.key_of[both] - len(self.jobs), self.type_of[both]
        job = np.concatenate([self.key_of[alone], members[key, 0], members[key, 1]])
        column = np.concatenate([alone, both, both])
        rate = np.concatenate(
            [self.rates[self.key_of[alone], self.type_of[alone]], shared[key, on, 0], shared[key, on, 1]]
        )
        order = np.lexsort((column, job))
        self.job, self.column, self.rate = job[order], column[order], rate[order]

    def workers(self, name: str) -> int:
        """GPUs that a type, also a virtual one, draws on."""
        return self.given.workers.get(self.drawn(name), 0)

    def drawn(self, name: str) -> str:
        """The physical type whose GPUs a type draws on."""
        return self.given.draws_on.get(name, name)

    @property
    def size(self) -> int:
        """How many columns there are."""
        return len(self.key_of)

    def of_jobs(self, name: str) -> Array:
        """This field of each job; not a number where it is None."""
        return np.array([getattr(job, name) for job in self.jobs], float)

    def by_job(self, x: Array, by_term: Array | None = None) -> Array:
        """Sums over the columns of each job, times the fractions: of the throughputs, or of what is named."""
        return np.bincount(
            self.job, (self.rate if by_term is None else by_term) * x[self.column], len(self.jobs)
        )

    def most(self, by_term: Array) -> Array:
        """The largest of each job."""
        return np.maximum.reduceat(by_term, np.flatnonzero(np.diff(self.job, prepend=-1)))

    @cached_property
    def by_arrival(self) -> list[int]:
        """The numbers of the jobs, the earliest first."""
        return sorted(range(len(self.jobs)), key=lambda job: (self.jobs[job].arrival, self.jobs[job].id))

    @cached_property
    def gpus(self) -> Array:
        """By column: the GPUs that it takes of its type."""
        return self.sizes[self.key_of]

    @cached_property
    def base_of(self) -> Array:
        """By column: the number of the physical type."""
        return self.base[self.type_of]

    @cached_property
    def fastest(self) -> Array:
        """Throughput of each job on its best type, alone."""
        rates: Array = self.rates.max(axis=1, initial=0.0)
        return rates

    @cached_property
    def best(self) -> Array:
        """Throughput of each job on the physical types, in its best placement."""
        found = np.zeros((len(self.jobs), len(self.physical)))
        for number, base in enumerate(self.base):
            found[:, base] = np.maximum(found[:, base], self.rates[:, number])
        return found

    @cached_property
    def usable(self) -> list[dict[str, float]]:
        """Throughput of each job alone, on the types where it can run, by name."""
        return [
            {name: rate for name, rate in zip(self.types, row, strict=True) if rate > 0}
            for row in self.rates.tolist()
        ]

    def only(self, kept: Array) -> Layout:
        """The same jobs with these columns alone."""
        terms = kept[self.column]
        found = copy.copy(self)
        found.__dict__.pop("gpus", None), found.__dict__.pop("base_of", None)
        found.type_of, found.key_of = self.type_of[kept], self.key_of[kept]
        found.job, found.rate = self.job[terms], self.rate[terms]
        found.column = (np.cumsum(kept) - 1)[self.column[terms]]
        return found

    def terms(self, first: int, coefficients: Array, jobs: Array | None = None) -> Part:
        """A row for each job, with these coefficients by term. X begins with the variable `first`.

        Args:
            jobs: rows for some alone: by job, whether it has one.
        """
        some = np.ones(len(self.jobs), bool) if jobs is None else jobs
        kept = some[self.job]
        return (np.cumsum(some) - 1)[self.job[kept]], first + self.column[kept], coefficients[kept]

    def add_validity(self, program: Program, first: int, scale: int | None = None) -> None:
        """The rows of a valid X, whose variables begin with `first`: none below 0, no more GPUs than there
        are, no job more than all the time. `scale`: a variable that multiplies all limits."""
        columns = np.arange(self.size)
        of_jobs = self.size + len(self.limits)
        # More than all jobs can use is no limit, and solvers take their tolerances from the largest number.
        gpus = np.minimum(self.limits, self.of_jobs("gpus").sum())
        limits = np.concatenate([np.zeros(self.size), gpus, np.ones(len(self.jobs))])
        parts: list[Part] = [
            (columns, first + columns, -1.0),
            (self.size + self.base_of, first + columns, self.gpus),
            (of_jobs + self.job, first + self.column, 1.0),
        ]
        if scale is not None:
            parts.append((np.arange(len(limits)), scale, -limits))
            limits = np.zeros(len(limits))
        program.block(Cone.NONNEGATIVE, limits, *parts)

    def _pairs(self) -> tuple[Array, Array]:
        """The pairs that have columns: the numbers of their jobs, and by type the throughputs of both."""
        known: list[Pair] = sorted(
            (pair for pair in self.given.pairs if all(job in self.index for job in pair.jobs)),
            key=lambda pair: pair.jobs,
        )
        members = np.array([[self.index[job] for job in pair.jobs] for pair in known], int).reshape(-1, 2)
        none = (0.0, 0.0)
        rates = [[pair.throughput.get(name, none) for name in self.types] for pair in known]
        shared = np.array(rates, float).reshape(-1, len(self.types), 2)
        one, other = members.T
        good = self.sizes[one] == self.sizes[other]
        alone = np.stack([self.rates[one], self.rates[other]], axis=2)
        relative = np.divide(shared, alone, out=np.zeros_like(shared), where=alone > 0)
        worth = (relative > 0).all(axis=2) & (relative.sum(axis=2) > 1)
        shared = np.where(worth[:, :, None], shared, 0.0)
        good &= worth.any(axis=1)
        return members[good], shared[good]
