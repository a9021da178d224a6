# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the input of an allocation makes sense, and the answer of a solver."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from controller.model import JobId
from controller.model.solving import SolutionStatus
from controller.policies.allocations.allocation import AllocationError, Given

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

T = TypeVar("T")
GOOD = (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE)
"""Of an answer that has values."""
TOLERANCE = 1e-4
"""An answer that is invalid by more than this fraction is nonsense."""


def check(given: Given) -> None:
    """Raises AllocationError: where the input is wrong, and what is allowed there."""
    for wrong in _mistakes(given):
        raise AllocationError(wrong)


def check_answer(found: Found, count: int) -> None:
    """Raises AllocationError where there are no values, too few, or some that are no numbers."""
    status, values, error = found
    if status not in GOOD:
        raise AllocationError(_SENTENCES.get(status, f"the solver failed: {error}"))
    if len(values) != count:
        raise AllocationError(f"the solver answered {len(values)} values for {count} variables")
    if not all(map(math.isfinite, values)):
        raise AllocationError("the solver answered numbers that are not finite")


def check_time(keys: Iterable[Sequence[JobId]], totals: Iterable[float]) -> None:
    """Raises AllocationError where a job has more than all its time.

    Args:
        keys: jobs, and pairs of them.
        totals: what each of these has on all types.
    """
    time: dict[JobId, float] = {}
    for jobs, total in zip(keys, totals, strict=True):
        for job in jobs:
            time[job] = time.get(job, 0.0) + total
    if time and max(time.values()) > 1 + 2 * TOLERANCE:
        job = max(time, key=time.__getitem__)
        raise AllocationError(f"the solver gave job {job} more than all its time: {time[job]:g}")


def check_gpus(used: float, name: str, gpus: int) -> None:
    """Raises AllocationError where more GPUs of a type are used than there are."""
    if used > gpus * (1 + TOLERANCE) + TOLERANCE:
        what = f"more GPUs of type {name} than there are: {used:g} instead of {gpus}"
        raise AllocationError(f"the solver gave {what}")


def _mistakes(given: Given) -> Iterator[str]:
    known = set(given.types)
    if not known:
        yield "types: there is none; at least one GPU type is needed"
    if len(known) < len(given.types):
        yield f"types: {twice(given.types)!r} is there twice"
    for place, names in (("workers", given.workers), ("prices", given.prices), ("draws_on", given.draws_on)):
        yield from _unknown(place, names, known)
    for name, base in given.draws_on.items():
        if base not in known or base in given.draws_on:
            yield f"draws_on: {name} must draw on a type that has GPUs of its own, not on {base!r}"
    for name, workers in given.workers.items():
        if workers < 0:
            yield f"workers.{name}: {workers} is less than 0"
    if not any(given.workers.get(name, 0) for name in known - set(given.draws_on)):
        yield "workers: no type has any; at least one GPU is needed"
    for name, price in given.prices.items():
        yield from _wrong(f"prices.{name}", price)
    ids = [job.id for job in given.jobs]
    known_ids = set(ids)
    if len(known_ids) < len(ids):
        yield f"jobs: {twice(ids)} is there twice; ids must differ"
    entities = [entity.name for entity in given.entities]
    if len(set(entities)) < len(entities):
        yield f"entities: {twice(entities)!r} is there twice"
    for entity in given.entities:
        yield from _wrong(f"entity {entity.name}: weight", entity.weight, above_zero=True)
    for job in given.jobs:
        place = f"job {job.id}"
        if job.gpus < 1:
            yield f"{place}: gpus: {job.gpus} is less than 1"
        yield from _wrong(f"{place}: weight", job.weight, above_zero=True)
        yield from _unknown(f"{place}: throughput", job.throughput, known)
        for name, rate in job.throughput.items():
            yield from _wrong(f"{place}: throughput.{name}", rate)
        for what in ("steps_left", "steps_done", "seconds_so_far", "isolated_seconds"):
            if (number := getattr(job, what)) is not None:
                yield from _wrong(f"{place}: {what}", number)
        for what in ("slo_seconds_left", "arrival"):
            if (number := getattr(job, what)) is not None and not math.isfinite(number):
                yield f"{place}: {what}: {number} is not a finite number"
        if given.entities and job.entity not in entities:
            yield f"{place}: entity: {job.entity!r} is none of {', '.join(entities)}"
    pairs = [frozenset(pair.jobs) for pair in given.pairs]
    if len(set(pairs)) < len(pairs):
        yield f"pairs: {sorted(twice(pairs))} is there twice"
    for pair in given.pairs:
        place = f"pair {pair.jobs[0]}, {pair.jobs[1]}"
        if pair.jobs[0] == pair.jobs[1] or not known_ids.issuperset(pair.jobs):
            yield f"{place}: jobs: must be the ids of two of the jobs"
        yield from _unknown(f"{place}: throughput", pair.throughput, known)
        for name, rates in pair.throughput.items():
            for rate in rates:
                yield from _wrong(f"{place}: throughput.{name}", rate)


def _wrong(place: str, number: float, above_zero: bool = False) -> Iterator[str]:
    if not math.isfinite(number):
        yield f"{place}: {number} is not a finite number"
    elif number < 0 or (above_zero and number == 0):
        yield f"{place}: {number} must be {'above 0' if above_zero else '0 or more'}"


def _unknown(place: str, names: Iterable[str], known: set[str]) -> Iterator[str]:
    if not known.issuperset(names):
        for name in [name for name in names if name not in known]:
            yield f"{place}: {name!r} is none of the types {', '.join(sorted(known))}"


def twice(values: Sequence[T]) -> T:
    """The first that is there twice."""
    return next(each for number, each in enumerate(values) if each in values[:number])


_SENTENCES = {
    SolutionStatus.INFEASIBLE: "the problem has no solution (infeasible)",
    SolutionStatus.UNBOUNDED: "the problem has no optimum (unbounded)",
}
