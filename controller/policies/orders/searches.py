# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials of one search: which of them takes the turns that the search has (SPEC 1.10).

The jobs of a search have together just the turns that they would have without being a search. Which of them
takes a turn is the search's own affair: exclusive jobs come first, the others by their priorities. So nothing
that a user says of a search takes turns from jobs of another search, or from jobs of none.

    level  = service of the search's jobs on these GPUs / their weights
    places = as many as it has jobs, evenly around the level, one slice apart in all

The places are those that equal jobs have in a round robin, and each slice raises the level by what the search
had of it. At each end of a slice all its jobs are put on the level: a job that ends leaves no debt behind.

Source: Gandiva (OSDI'18) 5.3, where the most promising configurations run exclusively and the others share;
the bound is this project's own.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

from controller.model import Job, value


@value
class Trial:
    """A job of a search among those that it takes turns with."""

    index: int
    """Which of them."""
    job: Job
    received: float
    """Seconds on GPUs by weight, as all jobs have them."""
    weight: float
    own: float
    """Seconds on GPUs by priority, against the search's other jobs only."""


def search_of(job: Job) -> Hashable:
    """Equal for jobs of one search. None: it is in none."""
    return job.request.search and (job.user, job.account, job.request.search.name)


def by_search(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials of each search that can take each other's turns: equal gangs of one class, bound to the same
    nodes."""
    found: dict[Hashable, list[Trial]] = {}
    for trial in trials:
        job = trial.job
        nodes = frozenset(gpu.node for gpu in job.allocation)
        rank = (job.priority_class, job.share_rank)
        found.setdefault((search_of(job), rank, job.request.size.wanted, nodes), []).append(trial)
    return list(found.values())


def level(trials: Sequence[Trial]) -> float:
    """What jobs of one search have received, by weight."""
    weights = math.fsum(trial.weight for trial in trials)
    return math.fsum(trial.received * trial.weight for trial in trials) / weights


def places(trials: Sequence[Trial], slice_seconds: float) -> list[tuple[int, float, float]]:
    """Index, received and arrival of each job of one search, as others see it."""
    middle, step = level(trials), slice_seconds / math.fsum(trial.weight for trial in trials)
    arrivals = sorted(trial.job.submit_time for trial in trials)
    first = middle - step * (len(trials) - 1) / 2
    return [
        (trial.index, first + place * step, arrival)
        for place, (trial, arrival) in enumerate(zip(sorted(trials, key=_turn), arrivals, strict=True))
    ]


def own_after(trials: Sequence[Trial]) -> list[float]:
    """What jobs of one search have had of it. Time while exclusive counts against other exclusive jobs only:
    a job that is exclusive no more goes on level with the others."""
    firsts = min((trial.own for trial in trials if _exclusive(trial)), default=0.0)
    others = min((trial.own for trial in trials if not _exclusive(trial)), default=firsts)
    return [trial.own + (others - firsts if _exclusive(trial) else 0.0) for trial in trials]


def _turn(trial: Trial) -> tuple[bool, float, float, int]:
    return (not _exclusive(trial), round(trial.own, 6), trial.job.submit_time, trial.job.id)


def _exclusive(trial: Trial) -> bool:
    return trial.job.request.search is not None and trial.job.request.search.exclusive
