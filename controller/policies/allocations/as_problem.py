# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation as one problem: all of its formulation is done where it is solved, so that the loop does not
wait for it."""

from collections.abc import Sequence
from operator import mul

from controller.model.solving import Problem, ProblemKind, Solution
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import AllocationError, Given
from controller.policies.allocations.check import check_answer, check_gpus, check_time
from controller.policies.allocations.settings import KEYS, AllocationSettings
from controller.policies.allocations.table import FractionTable

DEADLINE_SECONDS = 30.0
"""Of an allocation whose settings have none."""


class AsProblem:
    """States one allocation. `worker.solve` answers."""

    def __init__(self, name: str, settings: AllocationSettings) -> None:
        self._name, self._settings = name, settings.model_dump(mode="json", include=set(KEYS[name]))
        self._deadline_seconds = float(self._settings.get("deadline_seconds", DEADLINE_SECONDS))

    def begin(self, given: Given) -> Problem:
        """Its solution has the fractions of all jobs, then of all pairs, by type."""
        keys = given.keys
        data = {
            "allocation": self._name,
            "settings": self._settings,
            "given": given_data.dump(given),
            "variables": len(keys) * len(given.types),
        }
        subject, known = (given.types, keys), given.identity and f"{self._name} {given.identity}"
        return Problem(ProblemKind.ALLOCATION, data, self._deadline_seconds, subject, known)

    def read(self, solution: Solution) -> FractionTable:
        """Of the problem that was stated last. Raises AllocationError."""
        types, keys = solution.subject
        check_answer((solution.status, solution.values, solution.error), len(keys) * len(types))
        _check_range(solution.values)
        return FractionTable(tuple(types), keys, solution.values)


def check_values(given: Given, values: Sequence[float], *, one_gpu: bool) -> None:
    """Raises AllocationError where they are no fractions, or more time or GPUs than there are. `one_gpu`:
    gangs get none."""
    _check_range(values)
    by_type = [values[number :: len(given.types)] for number in range(len(given.types))]
    check_time(given.keys, map(sum, zip(*by_type, strict=True)))
    gpus = {job.id: job.gpus for job in given.jobs}
    sizes = [*gpus.values(), *(gpus.get(pair.jobs[0], 1) for pair in given.pairs)]
    bases = [given.draws_on.get(name, name) for name in given.types]
    for base in sorted(set(bases)):
        drawing = [number for number, other in enumerate(bases) if other == base]
        used = sum(sum(map(mul, by_type[number], sizes)) for number in drawing)
        check_gpus(used, base, given.workers.get(base, 0))
    some = any(
        rate > 0 and job.gpus <= given.workers.get(given.draws_on.get(name, name), 0)
        for job in given.jobs
        if job.gpus == 1 or not one_gpu
        for name, rate in job.throughput.items()
    )
    if some and not any(values):
        raise AllocationError("the solver gave no job any time")


def _check_range(values: Sequence[float]) -> None:
    if values and not 0 <= min(values) <= max(values) <= 1:
        raise AllocationError(f"the solver answered fractions from {min(values):g} to {max(values):g}")
