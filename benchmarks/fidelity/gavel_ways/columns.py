# SPDX-License-Identifier: GPL-2.0-or-later
"""The variables of Gavel's problems: every job and every pair has one on every type."""

from __future__ import annotations

import numpy as np

from benchmarks.fidelity.gavel_ways.settings import WaySettings
from controller.model.solving import Cone
from controller.policies.allocations.allocation import AllocationError, AllocationJob, Given
from controller.policies.allocations.check import TOLERANCE, check, check_answer
from controller.policies.allocations.checked import fit
from controller.policies.allocations.layout import Alike, Array, Layout
from controller.solver.problem_data import Found
from controller.solver.program import Program


class Columns(Layout):
    """Also where a job cannot run, or a gang is larger than its type; but for jobs that can run nowhere. An
    agnostic policy takes all types for equally fast."""

    def __init__(self, given: Given, *, alike: Alike | None = None, pairs: bool = False) -> None:
        """
        Args:
            alike: the throughput of a job on every type, where all types are taken for equally fast.
        """
        check(given)
        self.given, self.types = given, tuple(sorted(given.types))
        self.physical, self.base = self.types, np.arange(len(self.types))
        self.limits = np.array([float(self.workers(name)) for name in self.types])
        jobs = sorted(given.jobs, key=lambda job: job.id)
        rows = [[job.throughput.get(name, 0.0) for name in self.types] for job in jobs]
        rates = np.array(rows, float).reshape(-1, len(self.types))
        if alike is not None:
            everywhere = np.array([alike(job) for job in jobs], float).reshape(-1, 1)
            rates = np.repeat(everywhere, len(self.types), 1)
        can = np.flatnonzero(rates.any(axis=1))
        self.jobs, self.rates = [jobs[number] for number in can.tolist()], rates[can]
        self.index = {job.id: number for number, job in enumerate(self.jobs)}
        self.keys = [(job.id,) for job in self.jobs]
        self.sizes = self.of_jobs("gpus")
        members, shared = np.zeros((0, 2), int), np.zeros((0, len(self.types), 2))
        if pairs:
            members, shared = self._pairs()
            self.keys += [(self.jobs[one].id, self.jobs[other].id) for one, other in members.tolist()]
            self.sizes = np.concatenate([self.sizes, self.sizes[members[:, 0]]])
        count, every = len(self.jobs), len(self.keys)
        self.type_of = np.repeat(np.arange(len(self.types)), every)
        self.key_of = np.tile(np.arange(every), len(self.types))
        alone, both = np.flatnonzero(self.key_of < count), np.flatnonzero(self.key_of >= count)
        key, on = self.key_of[both] - count, self.type_of[both]
        job = np.concatenate([self.key_of[alone], members[key, 0], members[key, 1]])
        column = np.concatenate([alone, both, both])
        own = self.rates[self.key_of[alone], self.type_of[alone]]
        rate = np.concatenate([own, shared[key, on, 0], shared[key, on, 1]])
        order = np.lexsort((column, job))
        self.job, self.column, self.rate = job[order], column[order], rate[order]

    def _pairs(self) -> tuple[Array, Array]:
        """Also those that are no better than taking turns."""
        known = sorted(
            (pair for pair in self.given.pairs if all(job in self.index for job in pair.jobs)),
            key=lambda pair: pair.jobs,
        )
        members = np.array([[self.index[job] for job in pair.jobs] for pair in known], int).reshape(-1, 2)
        rates = [[pair.throughput.get(name, (0.0, 0.0)) for name in self.types] for pair in known]
        good = self.sizes[members[:, 0]] == self.sizes[members[:, 1]]
        return members[good], np.array(rates, float).reshape(-1, len(self.types), 2)[good]

    def add_validity(self, program: Program, first: int, scale: int | None = None) -> None:
        """With the numbers as they are."""
        assert scale is None
        columns, of_jobs = np.arange(self.size), self.size + len(self.limits)
        program.block(
            Cone.NONNEGATIVE,
            np.concatenate([np.zeros(self.size), self.limits, np.ones(len(self.jobs))]),
            (columns, first + columns, -1.0),
            (self.size + self.base_of, first + columns, self.gpus),
            (of_jobs + self.job, first + self.column, 1.0),
        )


def seen(given: Given, settings: WaySettings, *, ones: bool = False, pairs: bool = True) -> Columns:
    """The jobs as a policy of Gavel sees them. `ones`: an agnostic one counts one step per second, others as
    many as on `agnostic_type`, else as on the job's fastest."""

    def everywhere(job: AllocationJob) -> float:
        named = 1.0 if ones else job.throughput.get(settings.agnostic_type, 0.0)
        return named or max(job.throughput.values(), default=0.0)

    alike = everywhere if settings.throughputs == "agnostic" else None
    return Columns(given, alike=alike, pairs=pairs and settings.space_sharing)


def single(numbers: Array) -> Array:
    """Rounded to the 32 bits that Gavel's code has for the throughputs of pairs."""
    return numbers.astype(np.float32).astype(float)


def solved(found: Found, count: int) -> Array:
    """Its values. Raises AllocationError where there are none."""
    check_answer(found, count)
    return np.asarray(found[1], float)


def valid(columns: Columns, answer: Array) -> Array:
    """X, cut to 0…1 as there. Raises AllocationError where it is wrong by more than rounding."""
    if answer.size and (answer.min() < -TOLERANCE or answer.max() > 1 + TOLERANCE):
        raise AllocationError(f"the solver answered fractions from {answer.min():g} to {answer.max():g}")
    x = np.clip(answer, 0.0, 1.0)
    fit(columns, x)
    return x
