# SPDX-License-Identifier: GPL-2.0-or-later
"""What an allocation was given, as JSON. It goes with the problem and comes back with the solution, so that
this is read for the jobs that it was made of; later arrivals and ends do not count."""

from __future__ import annotations

from typing import Any

from controller.model import JobId
from controller.policies.allocations.allocation import AllocationJob, Entity, Given, Pair


def dump(given: Given) -> list[Any]:
    """JSON."""
    return [
        list(given.types),
        dict(given.workers),
        dict(given.prices),
        [_dump_job(job) for job in given.jobs],
        [[list(pair.jobs), {t: list(v) for t, v in pair.throughput.items()}] for pair in given.pairs],
        [[entity.name, entity.weight, entity.policy] for entity in given.entities],
        dict(given.draws_on),
        [[list(jobs), dict(row)] for jobs, row in given.previous.items()],
    ]


def _dump_job(job: AllocationJob) -> list[Any]:
    times = (job.steps_left, job.seconds_so_far, job.isolated_seconds, job.slo_seconds_left, job.arrival)
    return [job.id, job.gpus, job.weight, job.throughput, *times, job.entity, job.steps_done]


def load(raw: Any) -> Given:
    """Undo `dump`. Raises ValueError, TypeError."""
    types, workers, prices, jobs, pairs, entities, draws_on, previous = raw
    return Given(
        types=tuple(types),
        workers=workers,
        prices=prices,
        jobs=tuple(_load_job(*job) for job in jobs),
        pairs=tuple(
            Pair((JobId(one), JobId(other)), {t: (a, b) for t, (a, b) in rates.items()})
            for (one, other), rates in pairs
        ),
        entities=tuple(Entity(*entity) for entity in entities),
        draws_on=draws_on,
        previous={tuple(map(JobId, ids)): row for ids, row in previous},
    )


def _load_job(
    job_id: int,
    gpus: int,
    weight: float,
    throughput: dict[str, float],
    steps_left: float | None,
    seconds_so_far: float,
    isolated_seconds: float | None,
    slo_seconds_left: float | None,
    arrival: float,
    entity: str,
    steps_done: float | None,
) -> AllocationJob:
    return AllocationJob(
        id=JobId(job_id),
        gpus=gpus,
        weight=weight,
        throughput=throughput,
        steps_left=steps_left,
        seconds_so_far=seconds_so_far,
        isolated_seconds=isolated_seconds,
        slo_seconds_left=slo_seconds_left,
        arrival=arrival,
        entity=entity,
        steps_done=steps_done,
    )
