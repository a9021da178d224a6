# SPDX-License-Identifier: GPL-2.0-or-later
"""AlloX as in Gavel's code: among equal optima the one that it finds."""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.fidelity.gavel_ways.columns import Columns, seen
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from benchmarks.fidelity.gavel_ways.solvers import least_queues
from controller.policies.allocations.allocation import Allocated, Given, Jobs, Solve
from controller.policies.allocations.checked import as_fractions
from controller.policies.allocations.solving import none_can_run, seconds_left

NEVER = 1e-10
"""Steps per second where a job cannot run."""


class Allox:
    """Jobs that have a whole GPU keep it. The others are assigned to places in the queues of the GPUs that
    are left, GPU by GPU; the first of each queue runs. It is for jobs of one GPU."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        single = replace(given, jobs=tuple(job for job in given.jobs if job.gpus == 1), pairs=())
        columns = seen(single, self._settings.model_copy(update={"agnostic_type": ""}))
        if not columns.jobs:
            return none_can_run(given)
        kept, waiting, machines = self._stated(columns)
        if not waiting or not machines:
            return self._allocated(given, kept)
        left = (seconds_left(columns, self._settings.assumed_seconds) * columns.fastest).tolist()
        steps = [
            assumed if job.steps_left is None else job.steps_left
            for job, assumed in zip(columns.jobs, left, strict=True)
        ]
        places = least_queues(
            [[steps[job] / columns.usable[job].get(name, NEVER) for name in machines] for job in waiting],
            [columns.jobs[job].seconds_so_far for job in waiting],
        )
        queues: dict[int, list[tuple[int, int]]] = {}
        for job, place in zip(waiting, places, strict=True):
            from_end, machine = divmod(place, len(machines))
            queues.setdefault(machine, []).append((from_end, job))
        first = {columns.keys[max(queue)[1]]: machines[machine] for machine, queue in queues.items()}
        return self._allocated(given, {**kept, **first})

    def _stated(self, columns: Columns) -> tuple[dict[Jobs, str], list[int], list[str]]:
        """Jobs that keep their GPUs; those that are assigned, the oldest first; GPUs that are left."""
        kept: dict[Jobs, str] = {}
        for key in columns.keys:
            for name, fraction in columns.given.previous.get(key, {}).items():
                if fraction == 1.0:
                    kept[key] = name
        held = list(kept.values())
        machines = [name for name in columns.types for _ in range(columns.workers(name) - held.count(name))]
        waiting = [number for number, key in enumerate(columns.keys) if key not in kept]
        waiting.sort(key=lambda number: -columns.jobs[number].seconds_so_far)
        most = max(math.floor(self._settings.considered_fraction * len(waiting)), len(machines))
        return kept, waiting[:most], machines

    def _allocated(self, given: Given, rows: dict[Jobs, str]) -> Allocated:
        """The objective is the number of jobs that run."""
        whole = {jobs: {name: 1.0} for jobs, name in rows.items()}
        return Allocated(fractions=as_fractions(given, whole), objective=float(len(rows)), status="optimal")
