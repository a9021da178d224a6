# SPDX-License-Identifier: GPL-2.0-or-later
"""First come, first served as in Gavel's code."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from benchmarks.fidelity.gavel_ways.columns import Columns
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from controller.policies.allocations.allocation import Allocated, Given, Jobs, Solve
from controller.policies.allocations.checked import as_fractions, effective
from controller.policies.allocations.solving import none_can_run
from controller.policies.allocations.whole_gpus import Free


class FirstCome:
    """The head of the queue takes the fastest free type, until
    one fits nowhere. With space sharing the rest of the queue joins jobs that run alone, each the one with
    which both lose least, until one cannot. The rest begins behind the job that fits into no GPUs that are
    free; where none is free, with the next one.

    Agnostic: those that run stay, and the head of the queue takes the place of each that has ended. The next
    have the last type, though it may be too small. A type is drawn only when that one is used up: the drawn
    one is no longer available. So a type may have more jobs than GPUs.
    """

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        columns = Columns(given)
        if not columns.jobs:
            return none_can_run(given)
        rows, rest = self._alone(columns, Free(columns))
        if self._settings.space_sharing:
            self._pack(columns, rows, rest)
        fractions = as_fractions(given, {jobs: {name: 1.0} for jobs, name in rows.items()})
        rates = effective(given, fractions)
        order, fastest = columns.by_arrival, columns.fastest.tolist()
        objective = sum(
            rates[columns.jobs[job].id] / fastest[job] * (len(order) - rank) for rank, job in enumerate(order)
        )
        return Allocated(fractions=fractions, objective=objective, status="greedy")

    def _alone(self, columns: Columns, free: Free) -> tuple[dict[Jobs, str], Sequence[int]]:
        """What jobs have that run alone, and the rest of the queue."""
        rows: dict[Jobs, str] = {}
        previous = columns.given.previous if self._settings.throughputs == "agnostic" else {}
        ran = {
            jobs: name for jobs, row in previous.items() for name in columns.types if row.get(name, 0.0) > 0
        }
        queue = deque(job for job, key in enumerate(columns.keys) if key not in ran)
        for jobs, name in sorted(ran.items()):
            job = columns.index.get(jobs[0], -1)
            if job < 0:
                # It has ended. The head of the queue has its place, if it fits there.
                if not queue or name not in free.types(queue[0]):
                    continue
                job = queue.popleft()
            free.take(job, name)
            rows[columns.keys[job]] = name
        names = ",".join(str(job.id) for job in columns.jobs)
        draw = random.Random(f"{self._settings.seed}:{names}")
        available = [name for name in columns.types if free.left(name) > 0]
        while queue and available:
            job = queue.popleft()
            fits = free.room(job, available)
            if not fits:
                break
            name = gone = max(fits, key=lambda name: columns.usable[job].get(name, 0.0))
            if self._settings.throughputs == "agnostic":
                name, gone = available[-1], draw.choice(fits)
            if columns.usable[job].get(name):
                free.take(job, name)
                rows[columns.keys[job]] = name
                if free.left(name) == 0:
                    available.remove(gone)
        return rows, queue

    def _pack(self, columns: Columns, rows: dict[Jobs, str], rest: Sequence[int]) -> None:
        pairs = {frozenset(pair.jobs): pair for pair in columns.given.pairs}
        for job in (columns.jobs[number] for number in rest):
            best, gain = None, self._settings.pack_gain_ratio
            for jobs, name in rows.items():
                pair = pairs.get(frozenset((*jobs, job.id))) if len(jobs) == 1 else None
                other = columns.jobs[columns.index[jobs[0]]]
                if pair is None or other.gpus != job.gpus or not job.throughput.get(name):
                    continue
                sides = dict(zip(pair.jobs, pair.throughput.get(name, (0.0, 0.0)), strict=True))
                together = sides[job.id] / job.throughput[name]
                together += sides[other.id] / other.throughput[name]
                if together > gain:
                    best, gain = (jobs, pair.jobs), together
            if best is None:
                break
            rows[best[1]] = rows.pop(best[0])
