# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems of allocations, made for tests, and their answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.model import JobId
from controller.policies.allocations.allocation import Allocated, AllocationJob, Given, Pair
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import SETTINGS
from controller.solver.solve import find

TOLERANCE = 1e-6


def answer(name: str, given: Given, **settings: Any) -> Allocated:
    """What this allocation answers."""
    return ALLOCATIONS[name](SETTINGS[name](**settings)).allocate(given, find)


def given(
    rates: Sequence[Sequence[float]],
    workers: Sequence[int],
    jobs: Mapping[int, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Given:
    """Jobs 0, 1, … with these rates on the types t0, t1, …; `jobs`: other fields of some, by number."""
    types = tuple(f"t{number}" for number in range(len(workers)))
    made = tuple(
        AllocationJob(
            id=JobId(number),
            throughput=dict(zip(types, row, strict=True)),
            arrival=float(number),
            **(jobs or {}).get(number, {}),
        )
        for number, row in enumerate(rates)
    )
    return Given(types=types, workers=dict(zip(types, workers, strict=True)), jobs=made, **more)


def each(problem: Given, **fields: Any) -> Given:
    """All jobs with these fields."""
    return replace(problem, jobs=tuple(replace(job, **fields) for job in problem.jobs))


def matrix(problem: Given, allocated: Allocated) -> list[list[float]]:
    """X of the single jobs, a row for each."""
    return [[allocated.fractions[job.id,][name] for name in problem.types] for job in problem.jobs]


def drawn(seed: int, *, most_jobs: int = 7, one_gpu: bool = False, pairs: bool = False) -> Given:
    """A random problem: jobs of several sizes, weights and speeds, some that cannot run on some types."""
    draw = random.Random(seed)
    types = tuple(f"t{number}" for number in range(draw.randint(1, 4)))
    workers = {name: draw.randint(1, 5) for name in types}
    workers[types[0]] = max(workers[types[0]], 4)
    jobs = []
    for number in range(draw.randint(1, most_jobs)):
        rates = {name: round(10 ** draw.uniform(-1, 1.5), 3) for name in types if draw.random() < 0.85}
        rates.setdefault(types[0], 1.0)
        steps = round(10 ** draw.uniform(1, 4), 1)
        jobs.append(
            AllocationJob(
                id=JobId(number),
                gpus=1 if one_gpu else draw.choice([1, 1, 1, 2, 4]),
                weight=draw.choice([1.0, 1.0, 2.0, 5.0]),
                throughput=rates,
                steps_left=steps,
                seconds_so_far=draw.choice([0.0, round(draw.uniform(0, 1000), 1)]),
                isolated_seconds=round(draw.uniform(0, 500), 1),
                slo_seconds_left=draw.choice([None, steps * draw.uniform(0.3, 20)]),
                arrival=float(draw.randint(0, 5)),
            )
        )
    together = []
    for one in jobs:
        for other in jobs:
            if pairs and one.id < other.id and one.gpus == other.gpus:
                shared = {
                    name: (
                        round(one.throughput[name] * draw.uniform(0.3, 1), 4),
                        round(other.throughput[name] * draw.uniform(0.3, 1), 4),
                    )
                    for name in one.throughput
                    if name in other.throughput
                }
                together.append(Pair((one.id, other.id), shared))
    return Given(
        types=types,
        workers=workers,
        prices={name: round(draw.uniform(0.5, 4), 2) for name in types},
        jobs=tuple(jobs),
        pairs=tuple(together),
    )
