# SPDX-License-Identifier: GPL-2.0-or-later
"""AlloX as in Gavel's code, for comparisons: among equal optima the one that it finds."""

from __future__ import annotations

import math

from controller.model.solving import ProblemKind
from controller.policies.allocations.allocation import Allocated, Given, Jobs, Solve
from controller.policies.allocations.checked import solved
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import AlloxSettings
from controller.policies.allocations.shares import as_fractions
from controller.policies.allocations.solving import check_sizes, none_can_run, seconds_left, seen

NEVER = 1e-10
"""Steps per second where a job cannot run."""


class AlloxReference:
    """Jobs that have a whole GPU keep it. The others are assigned to places in the queues of the GPUs that
    are left, GPU by GPU; the first of each queue runs."""

    def __init__(self, settings: AlloxSettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        check_sizes(given)
        layout = seen(given, self._settings, exact=False)
        if not layout.jobs:
            return none_can_run(given)
        kept, waiting, machines = self._stated(layout)
        if not waiting or not machines:
            return self._allocated(given, kept)
        left = (seconds_left(layout, self._settings.assumed_seconds) * layout.fastest).tolist()
        steps = [
            assumed if job.steps_left is None else job.steps_left
            for job, assumed in zip(layout.jobs, left, strict=True)
        ]
        data = {
            "seconds": [
                [steps[job] / layout.usable[job].get(name, NEVER) for name in machines] for job in waiting
            ],
            "delays": [layout.jobs[job].seconds_so_far for job in waiting],
        }
        places = solved(solve(ProblemKind.QUEUES, data), len(waiting))
        queues: dict[int, list[tuple[int, int]]] = {}
        for job, place in zip(waiting, places.tolist(), strict=True):
            from_end, machine = divmod(int(place), len(machines))
            queues.setdefault(machine, []).append((from_end, job))
        first = {layout.keys[max(queue)[1]]: machines[machine] for machine, queue in queues.items()}
        return self._allocated(given, {**kept, **first})

    def _stated(self, layout: Layout) -> tuple[dict[Jobs, str], list[int], list[str]]:
        """Jobs that keep their GPUs; those that are assigned, the oldest first; GPUs that are left."""
        kept: dict[Jobs, str] = {}
        for key in layout.keys:
            for name, fraction in layout.given.previous.get(key, {}).items():
                if fraction == 1.0:
                    kept[key] = name
        held = list(kept.values())
        machines = [name for name in layout.types for _ in range(layout.workers(name) - held.count(name))]
        waiting = [number for number, key in enumerate(layout.keys) if key not in kept]
        waiting.sort(key=lambda number: -layout.jobs[number].seconds_so_far)
        most = max(math.floor(self._settings.considered_fraction * len(waiting)), len(machines))
        return kept, waiting[:most], machines

    def _allocated(self, given: Given, rows: dict[Jobs, str]) -> Allocated:
        """The objective is the number of jobs that run."""
        whole = {jobs: {name: 1.0} for jobs, name in rows.items()}
        return Allocated(fractions=as_fractions(given, whole), objective=float(len(rows)), status="optimal")
