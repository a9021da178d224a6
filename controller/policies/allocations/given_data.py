# SPDX-License-Identifier: GPL-2.0-or-later
"""What an allocation was given, as JSON. It goes with the problem and comes back with the solution, so that
this is read for the jobs that it was made of; later arrivals and ends do not count."""

from dataclasses import fields
from operator import attrgetter
from typing import Any

from controller.model import JobId
from controller.policies.allocations.allocation import AllocationJob, Entity, Given, Pair

_FIELDS = [field.name for field in fields(AllocationJob)]
_CONTENT = attrgetter(*_FIELDS)


def dump(given: Given) -> list[Any]:
    """JSON."""
    return [
        list(given.types),
        dict(given.workers),
        dict(given.prices),
        list(map(_CONTENT, given.jobs)),
        [[list(pair.jobs), {t: list(v) for t, v in pair.throughput.items()}] for pair in given.pairs],
        [[entity.name, entity.weight, entity.policy] for entity in given.entities],
        dict(given.draws_on),
        [[list(jobs), dict(row)] for jobs, row in given.previous.items()],
    ]


def load(raw: Any) -> Given:
    """Undo `dump`. Raises ValueError, TypeError."""
    types, workers, prices, jobs, pairs, entities, draws_on, previous = raw
    return Given(
        types=tuple(types),
        workers=workers,
        prices=prices,
        jobs=tuple(AllocationJob(**dict(zip(_FIELDS, job, strict=True))) for job in jobs),
        pairs=tuple(
            Pair((JobId(one), JobId(other)), {t: (a, b) for t, (a, b) in rates.items()})
            for (one, other), rates in pairs
        ),
        entities=tuple(Entity(*entity) for entity in entities),
        draws_on=draws_on,
        previous={tuple(map(JobId, ids)): row for ids, row in previous},
    )
