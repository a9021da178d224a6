# SPDX-License-Identifier: GPL-2.0-or-later
"""A problem in a JSON file, as `gandiva allocate` reads it. docs/allocations.md explains the keys."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from controller.errors import GandivaError
from controller.model import JobId
from controller.policies.allocations.allocation import AllocationError, AllocationJob, Entity, Given, Pair
from controller.policies.allocations.check import check
from controller.policies.allocations.settings import unknown_types
from controller.settings.base import Section, key_twice, wrong

S = TypeVar("S", bound=Section)

MOST_BYTES = 1 << 28
_AN_OBJECT = "must be an object in braces"
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "there is no such key",
    "model_type": _AN_OBJECT,
    "dict_type": _AN_OBJECT,
}
"""By pydantic's type of an error."""

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:/@ -]+$")]
Id = Annotated[int, Field(ge=0, le=2**53)]
Rate = Annotated[float, Field(ge=0, le=1e15)]
Weight = Annotated[float, Field(gt=0, le=1e9)]
Seconds = Annotated[float, Field(ge=0, le=1e15)]


class ProblemError(GandivaError):
    """The file is no problem, or one that makes no sense."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Job(_Part):
    id: Id
    gpus: Annotated[int, Field(ge=1, le=100_000)] = 1
    weight: Weight = 1.0
    throughput: dict[str, Rate]
    steps_left: Rate | None = None
    seconds_so_far: Seconds = 0.0
    isolated_seconds: Seconds | None = None
    slo_seconds_left: Annotated[float, Field(ge=-1e15, le=1e15)] | None = None
    arrival: Annotated[float, Field(ge=-1e15, le=1e15)] | None = None
    entity: str = ""


class _Pair(_Part):
    jobs: Annotated[list[Id], Field(min_length=2, max_length=2)]
    throughput: dict[str, Annotated[list[Rate], Field(min_length=2, max_length=2)]]


class _Entity(_Part):
    name: Name
    weight: Weight = 1.0
    policy: Literal["fairness", "fifo"] = "fairness"


class _File(_Part):
    types: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    workers: dict[str, Annotated[int, Field(ge=0, le=10_000_000)]]
    prices: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = {}
    draws_on: dict[str, str] = {}
    jobs: Annotated[list[_Job], Field(max_length=1_000_000)]
    pairs: Annotated[list[_Pair], Field(max_length=10_000_000)] = []
    entities: Annotated[list[_Entity], Field(max_length=100_000)] = []
    options: dict[str, Any] = {}


def read_problem(text: str, source: str, settings: type[S], keys: Collection[str]) -> tuple[Given, S]:
    """The problem, and the settings from its options.

    Args:
        text: JSON.
        source: how messages name it.
        settings: of the allocation that solves it.
        keys: of these, that it reads.

    Raises:
        ProblemError: what is wrong, where, and what is allowed there.
    """
    try:
        content, again = json.loads(text), key_twice(text)
    except (ValueError, RecursionError) as error:
        raise ProblemError(f"{source}: not valid JSON: {error}") from None
    if again:
        raise ProblemError(f"{source}: {again}")
    try:
        file = _File.model_validate(content)
        given = _given(file)
        check(given)
        for mistake in _without_effect(file, keys):
            raise ProblemError(f"{source}: {mistake}")
        options = settings.model_validate(file.options)
    except ValidationError as error:
        prefix = "" if error.title == _File.__name__ else "options"
        raise ProblemError(f"{source}: {_problem(error.errors()[0], prefix)}") from None
    except AllocationError as error:
        raise ProblemError(f"{source}: {error}") from None
    for mistake in unknown_types(dict(options), given.types):
        raise ProblemError(f"{source}: options.{mistake}")
    return given, options


def _given(file: _File) -> Given:
    return Given(
        types=tuple(file.types),
        workers=file.workers,
        prices=file.prices,
        draws_on=file.draws_on,
        jobs=tuple(
            AllocationJob(
                **{
                    **dict(job),
                    "id": JobId(job.id),
                    # Jobs that do not tell come in the order of the file.
                    "arrival": float(number) if job.arrival is None else job.arrival,
                }
            )
            for number, job in enumerate(file.jobs)
        ),
        pairs=tuple(
            Pair(
                (JobId(pair.jobs[0]), JobId(pair.jobs[1])),
                {name: (both[0], both[1]) for name, both in pair.throughput.items()},
            )
            for pair in file.pairs
        ),
        entities=tuple(Entity(one.name, one.weight, one.policy) for one in file.entities),
    )


def _without_effect(file: _File, keys: Collection[str]) -> Iterator[str]:
    """What would be ignored. Gavel's rounds may state such things, a file is mistaken."""
    for key in file.options:
        if key not in keys:
            yield f"options.{key}: {_WORDS['extra_forbidden']}"
    for job in file.jobs:
        if job.entity and not file.entities:
            yield f"job {job.id}: entity: there are no entities"
        if job.slo_seconds_left is not None and job.steps_left is None:
            yield f"job {job.id}: slo_seconds_left: needs steps_left"
    gpus = {job.id: job.gpus for job in file.jobs}
    for one, other in (pair.jobs for pair in file.pairs):
        if gpus[one] != gpus[other]:
            wanted = f"must be two of equal gpus, not of {gpus[one]} and {gpus[other]}"
            yield f"pair {one}, {other}: jobs: {wanted}"
    for name, base in file.draws_on.items():
        for key, by_type in (("workers", file.workers), ("prices", file.prices)):
            if name in by_type:
                yield f"{key}.{name}: must be left out: {name} draws on the GPUs of {base}"


def _problem(details: ErrorDetails, prefix: str) -> str:
    place = prefix
    for part in details["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    text = _WORDS.get(details["type"]) or wrong(details)
    return f"{place}: {text}" if place else text
