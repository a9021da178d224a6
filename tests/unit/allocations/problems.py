# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems of allocations, made for tests, and their answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.fidelity.gavel_ways.allocations import allocate
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from benchmarks.fidelity.gavel_ways.solvers import solver
from controller.model import JobId
from controller.policies.allocations.allocation import Allocated, AllocationJob, Entity, Given, Pair
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import AllocationSettings
from controller.solver.solve import find

TOLERANCE = 1e-6


def answer(name: str, given: Given, **settings: Any) -> Allocated:
    """What this allocation answers."""
    if settings.get("solver") == "ecos":  # no solver of the product
        del settings["solver"]
        return ALLOCATIONS[name](AllocationSettings(**settings)).allocate(given, solver("ecos"))
    return ALLOCATIONS[name](AllocationSettings(**settings)).allocate(given, find)


def theirs(way: str, given: Given, **settings: Any) -> Allocated:
    """The same of Gavel's way, by Clarabel where nothing else is said."""
    return allocate(way, WaySettings(**{"solver": "clarabel", **settings}), given)


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


SPEEDS = {"h100": 12.0, "a100": 6.0, "v100": 3.0, "p100": 1.6, "t4": 1.2, "k80": 0.5}
SITES = (("v100", "p100", "k80"), ("a100", "v100", "t4"), ("h100", "a100"), ("a100",), ("h100", "a100", "t4"))


def everyday(
    seed: int, *, most_jobs: int = 24, pairs: bool = False, one_gpu: bool = False, entities: int = 0
) -> Given:
    """A random problem as clusters have them: up to two weeks of work or next to nothing, hours or months
    after the arrival, gangs that some types cannot take, weights from 0.5 to 10."""
    draw = random.Random(seed)
    types = draw.choice(SITES)
    jobs = []
    for number in range(draw.randint(1, most_jobs)):
        base, steepness = 10 ** draw.uniform(-1, 2), draw.uniform(0.2, 1.3)
        rates = {
            name: round(base * SPEEDS[name] ** steepness * draw.uniform(0.9, 1.1), 3)
            for name in types
            if draw.random() < 0.9 or name == types[0]
        }
        fastest = max(rates.values())
        seconds = 10 ** (draw.uniform(1, 6) if draw.random() < 0.9 else draw.uniform(-3, 1))
        steps = draw.choice([None, *[seconds * fastest, float(round(seconds * fastest))] * 9])
        so_far = draw.choice([0.0, 10 ** draw.uniform(0, 6.5), 10 ** draw.uniform(0, 5)])
        deadline = draw.choice([None, None, seconds * draw.uniform(0.5, 20)])
        jobs.append(
            AllocationJob(
                id=JobId(number),
                gpus=1 if one_gpu else draw.choice([1, 1, 1, 1, 2, 2, 4, 8]),
                weight=draw.choice([1.0, 1.0, 1.0, 2.0, 0.5, 4.0, 10.0]),
                throughput=rates,
                steps_left=steps,
                seconds_so_far=so_far,
                steps_done=draw.choice([None, draw.random() * so_far * fastest]),
                slo_seconds_left=None if steps is None else deadline,
                arrival=-so_far,
                entity=f"e{draw.randrange(entities)}" if entities else "",
            )
        )
    together = [
        Pair(
            (one.id, other.id),
            {
                name: (
                    one.throughput[name] * draw.uniform(0.3, 1),
                    other.throughput[name] * draw.uniform(0.3, 1),
                )
                for name in one.throughput
                if name in other.throughput
            },
        )
        for one in jobs
        for other in jobs
        if pairs and one.id < other.id and one.gpus == other.gpus
    ]
    return Given(
        types=types,
        workers={name: draw.choice([1, 2, 4, 8, 8, 16, 32, 64]) for name in types},
        prices={name: round(SPEEDS[name] * draw.uniform(0.2, 0.5), 2) for name in types},
        jobs=tuple(jobs),
        pairs=tuple(together),
        entities=tuple(
            Entity(f"e{n}", float(n + 1), draw.choice(["fairness", "fifo"])) for n in range(entities)
        ),
    )
