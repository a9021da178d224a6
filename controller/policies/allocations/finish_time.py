# SPDX-License-Identifier: GPL-2.0-or-later
"""Finish-time fairness (Themis) as Gavel states it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from controller.model import JobId
from controller.model.solving import Cone
from controller.policies.allocations.allocation import Allocated, Given, Solve
from controller.policies.allocations.check import GOOD
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Array, Layout, single
from controller.policies.allocations.settings import GavelFtfSettings
from controller.policies.allocations.shares import fixed, isolated, isolated_rates, isolated_throughputs
from controller.policies.allocations.solving import asked, none_can_run, seen
from controller.solver.program import Program


class FinishTime:
    """Minimises the largest ratio of a job's finish time to its finish time alone on its part of the cluster:
    (time so far + steps left / throughput) / (isolated time so far + steps left / isolated throughput).

    A job that does not tell its steps counts as one without end, whose ratio is that of the throughputs.
    """

    def __init__(self, settings: GavelFtfSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        speeds = self._speeds(layout)
        done, part = self._ratios(layout)
        if not part.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        jobs, program = np.arange(len(layout.jobs)), Program()
        if not self._exact and len(jobs) == 1:
            # Gavel's code has no variable for the largest ratio where there is one job.
            inverse = program.variables(1, part).start
            first = program.variables(layout.size).start
        else:
            largest = program.variables(1, 1.0).start
            first = program.variables(layout.size).start
            inverse = program.variables(len(jobs)).start
            ratio = (jobs, largest, -1.0), (jobs, inverse + jobs, part)
            program.block(Cone.NONNEGATIVE, -done, *ratio)
        layout.add_validity(program, first)
        # inverse * speed >= 1
        of_job, variables, coefficients = 3 * layout.job, first + layout.column, -speeds
        program.block(
            Cone.SECOND_ORDER,
            np.tile([0.0, 0.0, 2.0], len(jobs)),
            (of_job, variables, coefficients),
            (of_job + 1, variables, coefficients),
            (3 * jobs, inverse + jobs, -1.0),
            (3 * jobs + 1, inverse + jobs, 1.0),
            rows_each=3,
        )
        found = asked(solve, self._settings, program)
        if not self._exact and found[0] not in GOOD:
            return fixed(layout, isolated(layout), "isolated")
        x = valid(layout, solved(found, program.size)[first : first + layout.size])
        speed, some = layout.by_job(x, speeds), part > 0
        with np.errstate(divide="ignore"):
            worst = float((done + np.divide(part, speed, out=np.zeros_like(part), where=some)).max())
        objective = min(worst, 1e300)
        return Allocated(fractions=fractions(layout, x), objective=objective, status=found[0].value)

    def isolated_rates(self, given: Given) -> Mapping[JobId, float]:
        """Steps per second of each job on its own part of the cluster, as this allocation sees them; 0 for
        one that can run nowhere. Raises AllocationError."""
        return isolated_rates(self._layout(given))

    def _layout(self, given: Given) -> Layout:
        return seen(
            given,
            self._settings,
            exact=self._exact,
            pairs=self._settings.space_sharing,
            agnostic_type=self._settings.agnostic_type,
        )

    def _units(self, layout: Layout) -> Array:
        """An exact problem has speeds relative to the fastest type, so that numbers are of similar size."""
        return layout.fastest if self._exact else np.ones(len(layout.jobs))

    def _speeds(self, layout: Layout) -> Array:
        """By term."""
        speeds: Array = layout.rate / self._units(layout)[layout.job]
        if self._settings.space_sharing and not self._exact:
            # Gavel's code rounds them, and counts the weights twice.
            speeds = single(single(layout.rate) / layout.of_jobs("weight")[layout.job])
        return speeds

    def _ratios(self, layout: Layout) -> tuple[Array, Array]:
        """A job's ratio is the first number plus the second divided by its speed."""
        rate, unit, so_far = (
            isolated_throughputs(layout),
            self._units(layout),
            layout.of_jobs("seconds_so_far"),
        )
        left, steps_done = layout.of_jobs("steps_left"), layout.of_jobs("steps_done")
        known = layout.of_jobs("isolated_seconds")
        alone = np.where(np.isnan(steps_done), so_far, steps_done / rate)
        alone = np.where(np.isnan(known), alone, known) + left / rate
        scale = np.divide(1.0, alone, out=np.zeros_like(alone), where=alone > 0)
        endless = np.isnan(left)
        return np.where(endless, 0.0, so_far * scale), np.where(endless, rate / unit, left / unit * scale)
