# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations of whole GPUs: the shortest job first, and AlloX, the least sum of completion times."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from controller.model.solving import Cone, ProblemKind
from controller.policies.allocations.allocation import Allocated, AllocationError, Given, Solve
from controller.policies.allocations.checked import as_fractions, solved
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.solving import LaidOut, seconds_left
from controller.solver.program import Program

Slot = tuple[int, str, int]
"""A job, a type, and its place in the queue of one of its GPUs, counted from the last."""


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
        return self._gpus[self._layout.drawn(name)]

    def take(self, job: int, name: str) -> None:
        self._gpus[self._layout.drawn(name)] -= self._layout.jobs[job].gpus


class ShortestFirst(LaidOut):
    """The job with the least time left on its fastest type takes its fastest free type, then the next. One
    that does not fit is passed. The objective is the time until the first of them ends."""

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        left = seconds_left(layout, self._settings.assumed_seconds).tolist()
        fastest = layout.fastest.tolist()
        free, rows, first = Free(layout), {}, float("inf")
        for job in sorted(range(len(left)), key=lambda job: (left[job], layout.jobs[job].id)):
            for name in free.types(job)[:1]:
                free.take(job, name)
                rows[layout.keys[job]] = {name: 1.0}
                first = min(first, left[job] / (layout.usable[job][name] / fastest[job]))
        return Allocated(fractions=as_fractions(layout.given, rows), objective=first, status="optimal")


class Allox(LaidOut):
    """Assigns jobs of one GPU to places in the queues of the GPUs. The job in the k-th place from the end
    delays itself and k-1 others, so it counts k times its time left. The first of each queue runs.

    Jobs that run keep their GPU to their end. The other GPUs share the waiting jobs; the optimum of the
    linear problem is a corner, where each job has one place.
    """

    def layout(self, given: Given) -> Layout:
        layout = super().layout(given)
        for job in given.jobs:
            if job.gpus != 1:
                raise AllocationError(f"job {job.id}: gpus: allox takes jobs of one GPU, not of {job.gpus}")
        return layout

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        free = Free(layout)
        running, slots = self._stated(layout, free)
        if not slots:
            return self._allocated(layout, running, 0.0)
        seconds = self._seconds(layout)
        costs = np.array([k * seconds(job, name) for job, name, k in slots])
        numbers, program = np.arange(len(slots)), Program()
        program.variables(len(slots), costs / (costs.max() or 1.0))
        program.block(Cone.NONNEGATIVE, np.zeros(len(slots)), (numbers, numbers, -1.0))
        places: dict[tuple[str, int], int] = {}
        of_place = [places.setdefault((layout.drawn(name), k), len(places)) for _, name, k in slots]
        program.block(Cone.NONNEGATIVE, [free.left(name) for name, _ in places], (of_place, numbers, 1.0))
        jobs: dict[int, int] = {}
        of_job = [jobs.setdefault(job, len(jobs)) for job, _, _ in slots]
        program.block(Cone.ZERO, np.ones(len(jobs)), (of_job, numbers, 1.0))
        values = solved(solve(ProblemKind.VERTEX, program.arrays()), program.size).tolist()
        taken = [slot for slot, value in zip(slots, values, strict=True) if value > 0.5]
        if sorted(job for job, _, _ in taken) != sorted({job for job, _, _ in slots}):
            raise AllocationError("the solver did not assign each job to one place")
        objective = sum(k * seconds(job, name) for job, name, k in taken)
        rows, age = dict(running), {job: number for number, job in enumerate(layout.by_arrival)}
        # A queue of k jobs begins with one in the k-th place: with all of them where no queue is longer.
        for base in layout.physical:
            mine = [slot for slot in taken if layout.drawn(slot[1]) == base]
            begun = 0
            for place in range(max((k for _, _, k in mine), default=0), 0, -1):
                at = sorted((age[job], job, name) for job, name, k in mine if k == place)
                if len(at) > free.left(base):
                    raise AllocationError(f"the solver gave more GPUs of type {base} than there are")
                for _, job, name in at[: max(0, len(at) - begun)]:
                    rows[job] = name
                begun = max(begun, len(at))
        return self._allocated(layout, rows, objective)

    def _stated(self, layout: Layout, free: Free) -> tuple[dict[int, str], list[Slot]]:
        """Jobs that run and where, which take their GPUs, and the places for those that wait."""
        running = dict[int, str]()
        for job, key in enumerate(layout.keys):
            for name, fraction in layout.given.previous.get(key, {}).items():
                if fraction > 0.5 and name in free.types(job):
                    free.take(job, name)
                    running[job] = name
        waiting = [job for job in layout.by_arrival if job not in running and free.types(job)]
        left = sum(map(free.left, layout.physical))
        count = max(math.ceil(self._settings.considered_fraction * len(waiting)), left)
        waiting = waiting[:count]
        slots = [
            (job, name, k)
            for job in waiting
            for name in free.types(job)
            # A corner has no longer queue than with equal ones: the last place of another GPU is better.
            for k in range(1, 1 + math.ceil(len(waiting) / free.left(name)))
        ]
        return running, slots

    def _seconds(self, layout: Layout) -> Callable[[int, str], float]:
        """How long a job still takes on a type."""
        steps = (seconds_left(layout, self._settings.assumed_seconds) * layout.fastest).tolist()
        return lambda job, name: steps[job] / layout.usable[job][name]

    def _allocated(self, layout: Layout, rows: dict[int, str], objective: float) -> Allocated:
        """The objective is the sum of the completion times of the waiting jobs, in seconds from now."""
        whole = {layout.keys[job]: {name: 1.0} for job, name in rows.items()}
        return Allocated(fractions=as_fractions(layout.given, whole), objective=objective, status="optimal")
