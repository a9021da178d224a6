# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations of whole GPUs to one job after the other, without a solver."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence

from controller.policies.allocations.allocation import Allocated, Given, Jobs, Solve
from controller.policies.allocations.checked import effective
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import GavelFifoSettings, GavelSjfSettings
from controller.policies.allocations.shares import as_fractions
from controller.policies.allocations.solving import none_can_run, seconds_left, seen
from controller.policies.allocations.sums import by_arrival


class Free:
    """GPUs not given away yet, by type."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._gpus = {name: layout.workers(name) for name in layout.physical}

    def types(self, job: int) -> list[str]:
        """Where the job can begin now, the fastest first."""
        rates = self._layout.usable[job]
        room = self.room(job, self._layout.types)
        return sorted((name for name in room if name in rates), key=lambda name: -rates[name])

    def room(self, job: int, types: Iterable[str]) -> list[str]:
        """Those of these types with as many free GPUs as the job has, also where it cannot run."""
        gpus = self._layout.jobs[job].gpus
        return [name for name in types if gpus <= self.left(name)]

    def left(self, name: str) -> int:
        """Free GPUs of a type."""
        return self._gpus[self._base(name)]

    def take(self, job: int, name: str) -> None:
        self._gpus[self._base(name)] -= self._layout.jobs[job].gpus

    def _base(self, name: str) -> str:
        return self._layout.given.draws_on.get(name, name)


class ShortestFirst:
    """The job with the least time left on its fastest type takes its fastest free type, then the next. One
    that does not fit is passed. The objective is the time until the first of them ends."""

    def __init__(self, settings: GavelSjfSettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = seen(given, self._settings, agnostic_type=self._settings.agnostic_type)
        if not layout.jobs:
            return none_can_run(given)
        left = seconds_left(layout, self._settings.assumed_seconds).tolist()
        fastest = layout.fastest.tolist()
        free, rows, first = Free(layout), {}, float("inf")
        for job in sorted(range(len(left)), key=lambda job: (left[job], layout.jobs[job].id)):
            for name in free.types(job)[:1]:
                free.take(job, name)
                rows[layout.keys[job]] = {name: 1.0}
                first = min(first, left[job] / (layout.usable[job][name] / fastest[job]))
        return Allocated(fractions=as_fractions(given, rows), objective=first, status="optimal")


class FirstComeReference:
    """First come, first served as in Gavel's code: the head of the queue takes the fastest free type, until
    one fits nowhere. With space sharing the rest of the queue joins jobs that run alone, each the one with
    which both lose least, until one cannot. The rest begins behind the job that fits into no GPUs that are
    free; where none is free, with the next one.

    Agnostic: those that run stay, and the head of the queue takes the place of each that has ended. The next
    have the last type, though it may be too small. A type is drawn only when that one is used up: the drawn
    one is no longer available. So a type may have more jobs than GPUs.
    """

    def __init__(self, settings: GavelFifoSettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = Layout(given, exact=False)
        if not layout.jobs:
            return none_can_run(given)
        rows, rest = self._alone(layout, Free(layout))
        if self._settings.space_sharing:
            self._pack(layout, rows, rest)
        fractions = as_fractions(given, {jobs: {name: 1.0} for jobs, name in rows.items()})
        rates = effective(given, fractions)
        order, fastest = by_arrival(layout), layout.fastest.tolist()
        objective = sum(
            rates[layout.jobs[job].id] / fastest[job] * (len(order) - rank) for rank, job in enumerate(order)
        )
        return Allocated(fractions=fractions, objective=objective, status="greedy")

    def _alone(self, layout: Layout, free: Free) -> tuple[dict[Jobs, str], Sequence[int]]:
        """What jobs have that run alone, and the rest of the queue."""
        rows: dict[Jobs, str] = {}
        previous = layout.given.previous if self._settings.throughputs == "agnostic" else {}
        ran = {
            jobs: name for jobs, row in previous.items() for name in layout.types if row.get(name, 0.0) > 0
        }
        queue = deque(job for job, key in enumerate(layout.keys) if key not in ran)
        for jobs, name in sorted(ran.items()):
            job = layout.index.get(jobs[0], -1)
            if job < 0:
                # It has ended. The head of the queue has its place, if it fits there.
                if not queue or name not in free.types(queue[0]):
                    continue
                job = queue.popleft()
            free.take(job, name)
            rows[layout.keys[job]] = name
        names = ",".join(str(job.id) for job in layout.jobs)
        draw = random.Random(f"{self._settings.seed}:{names}")
        available = [name for name in layout.types if free.left(name) > 0]
        while queue and available:
            job = queue.popleft()
            fits = free.room(job, available)
            if not fits:
                break
            name = gone = max(fits, key=lambda name: layout.usable[job].get(name, 0.0))
            if self._settings.throughputs == "agnostic":
                name, gone = available[-1], draw.choice(fits)
            if layout.usable[job].get(name):
                free.take(job, name)
                rows[layout.keys[job]] = name
                if free.left(name) == 0:
                    available.remove(gone)
        return rows, queue

    def _pack(self, layout: Layout, rows: dict[Jobs, str], rest: Sequence[int]) -> None:
        pairs = {frozenset(pair.jobs): pair for pair in layout.given.pairs}
        for job in (layout.jobs[number] for number in rest):
            best, gain = None, self._settings.pack_gain_ratio
            for jobs, name in rows.items():
                pair = pairs.get(frozenset((*jobs, job.id))) if len(jobs) == 1 else None
                other = layout.jobs[layout.index[jobs[0]]]
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
