# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation as one problem: all of its formulation is done where it is solved, so that the loop does not
wait for it."""

from __future__ import annotations

from operator import mul
from typing import Any

from controller.model.solving import Problem, ProblemKind, Solution
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import AllocationError, Asked, Fractions, Given
from controller.policies.allocations.check import check_answer, check_gpus, check_time
from controller.policies.allocations.settings import ONE_GPU, SETTINGS
from controller.settings.base import Section

DEADLINE_SECONDS = 30.0
"""Of an allocation whose settings have none."""


class AsProblem:
    """States one allocation. `worker.solve` answers."""

    def __init__(self, name: str, settings: Section) -> None:
        """`settings`: with those of the allocation of this name among them."""
        own = set(SETTINGS[name].model_fields)
        self._name, self._settings = name, settings.model_dump(mode="json", include=own)
        self._deadline_seconds = float(self._settings.get("deadline_seconds", DEADLINE_SECONDS))

    def begin(self, given: Given) -> Asked:
        """Its solution has the fractions of all jobs, then of all pairs, by type."""
        keys: list[Any] = [*((job.id,) for job in given.jobs), *(pair.jobs for pair in given.pairs)]
        data = {
            "allocation": self._name,
            "settings": self._settings,
            "given": given_data.dump(given),
            "variables": len(keys) * len(given.types),
        }
        subject = [list(given.types), keys, *self._limits(given)]
        return Asked(Problem(ProblemKind.ALLOCATION, data, self._deadline_seconds, subject))

    def read(self, solution: Solution) -> Fractions:
        """Of the problem that was stated last. Raises AllocationError."""
        types, keys, sizes, pools, some = solution.subject
        values = solution.values
        check_answer((solution.status, values, solution.error), len(keys) * len(types))
        if values and not 0 <= min(values) <= max(values) <= 1:
            raise AllocationError(f"the solver answered fractions from {min(values):g} to {max(values):g}")
        by_type = [values[number :: len(types)] for number in range(len(types))]
        check_time(keys, map(sum, zip(*by_type, strict=True)))
        for name, gpus, drawing in pools:
            check_gpus(sum(sum(map(mul, by_type[number], sizes)) for number in drawing), name, gpus)
        if some and not any(values):
            raise AllocationError("the solver gave no job any time")
        rows = (dict(zip(types, row, strict=True)) for row in zip(*by_type, strict=True))
        return dict(zip(map(tuple, keys), rows, strict=True))

    def _limits(self, given: Given) -> tuple[list[int], list[Any], bool]:
        """The GPUs of each job and pair; by type with GPUs of its own: its name, its GPUs, and the numbers of
        the types that draw on them; whether some job can run."""
        sizes = {job.id: job.gpus for job in given.jobs}
        of_keys = [*sizes.values(), *(sizes.get(pair.jobs[0], 1) for pair in given.pairs)]
        bases = [given.draws_on.get(name, name) for name in given.types]
        workers = {name: given.workers.get(base, 0) for name, base in zip(given.types, bases, strict=True)}
        pools = [
            [base, workers.get(base, 0), [number for number, other in enumerate(bases) if other == base]]
            for base in sorted(set(bases))
        ]
        some = any(
            rate > 0 and job.gpus <= workers.get(name, 0)
            for job in given.jobs
            if job.gpus == 1 or self._name not in ONE_GPU
            for name, rate in job.throughput.items()
        )
        return of_keys, pools, some
