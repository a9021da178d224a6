# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations of whole GPUs to one job after the other, without a solver."""

from __future__ import annotations

from collections.abc import Iterable

from controller.policies.allocations.allocation import Allocated, Solve
from controller.policies.allocations.checked import as_fractions
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.solving import LaidOut, seconds_left


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
