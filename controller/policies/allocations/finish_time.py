# SPDX-License-Identifier: GPL-2.0-or-later
"""Finish-time fairness (Themis) as Gavel states it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from controller.model.solving import Cone, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Solve
from controller.policies.allocations.checked import fractions, raised, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.shares import fixed, isolated, isolated_throughputs
from controller.policies.allocations.solving import LaidOut, asked
from controller.policies.allocations.together import LEAST_PART, together
from controller.solver.program import Program

CLOSE = 1e-7
"""The least ratio is found within this part of what jobs still add to it."""


class FinishTime(LaidOut):
    """Minimises the largest ratio of a job's finish time to its finish time alone on its part of the cluster:
    (time so far + steps left / throughput) / (isolated time so far + steps left / isolated throughput).

    A job that does not tell its steps counts as one without end, whose ratio is that of the throughputs.
    """

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        ratios = self._ratios(layout)
        if not ratios.part.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        jobs, program = np.arange(len(layout.jobs)), Program()
        # Numbers are of similar size: relative to the least ratio and the best speeds.
        about, unit = ratios.scale()
        largest = program.variables(1, 1.0).start
        first = program.variables(layout.size).start
        inverse = program.variables(len(jobs)).start
        ratio = (jobs, largest, -1.0), (jobs, inverse + jobs, ratios.part / about / unit)
        program.block(Cone.NONNEGATIVE, -ratios.done / about, *ratio)
        layout.add_validity(program, first)
        # inverse * speed / unit >= 1
        of_job, variables = 3 * layout.job, first + layout.column
        coefficients = -ratios.speeds / unit[layout.job]
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
        status, x = found[0].value, None
        if found[0] is SolutionStatus.OPTIMAL:
            values = solved(found, program.size)
            x = self._taken(ratios, values[0] * about, values[first : first + layout.size])
        if x is None:
            x, status = self._searched(ratios, solve)
        objective = min(ratios.worst(x), 1e300)
        return Allocated(fractions=fractions(layout, x), objective=objective, status=status)

    def _taken(self, ratios: _Ratios, largest: float, answer: Array) -> Array | None:
        """The X of an answer. None where it is not as good as it says."""
        with suppress(AllocationError):
            x = raised(ratios.layout, valid(ratios.layout, answer), ratios.speeds, ratios.needs(largest))
            close = ratios.close(
                largest
            )  # a solver's tolerance is of the ratio, to which jobs may add little
            if close >= CLOSE * LEAST_PART * largest and ratios.worst(x) <= largest + close:
                return x
        return None

    def _searched(self, ratios: _Ratios, solve: Solve) -> tuple[Array, str]:
        """The X of the least ratio, and its status, by linear problems: how many times what they need for a
        ratio can all jobs have? Solvers answer that also where some numbers are much larger than others."""

        def at(ratio: float) -> tuple[Array, float, str]:
            return together(ratios.layout, ratios.speeds, ratios.needs(ratio), solve, self._settings)

        low = ratios.least
        x, below, status = at(low)
        high = ratios.worst(x)
        x, above, status = at(high)
        while high - low > ratios.close(high):
            part = (1 - below) / (above - below) if below < 1 < above else 0.5
            ratio = low + part * (high - low)
            found = at(ratio)
            # The end that stays moves closer: else it would stay for ever.
            if found[1] >= 1:
                (x, above, status), high, below = found, ratio, (1 + below) / 2
            else:
                low, below, above = ratio, found[1], (1 + above) / 2
        return x, status

    def _ratios(self, layout: Layout) -> _Ratios:
        speeds, rate = layout.rate, isolated_throughputs(layout)
        so_far, left = layout.of_jobs("seconds_so_far"), layout.of_jobs("steps_left")
        known, steps_done = layout.of_jobs("isolated_seconds"), layout.of_jobs("steps_done")
        alone = np.where(np.isnan(steps_done), so_far, steps_done / rate)
        alone = np.where(np.isnan(known), alone, known) + left / rate
        scale = np.divide(1.0, alone, out=np.zeros_like(alone), where=alone > 0)
        endless = np.isnan(left)
        done, part = np.where(endless, 0.0, so_far * scale), np.where(endless, rate, left * scale)
        return _Ratios(layout, speeds, done, part)


class _Ratios:
    """A job's ratio is `done`, and `part` divided by its speed. `speeds`: by term."""

    def __init__(self, layout: Layout, speeds: Array, done: Array, part: Array) -> None:
        self.layout, self.speeds, self.done, self.part = layout, speeds, done, part
        self._shortest = part / layout.most(speeds)
        """`part` divided by the highest speed."""
        self.least = float((done + self._shortest).max())
        """No X has less."""

    def scale(self) -> tuple[float, Array]:
        """What the ratios are about, and the speed of each job."""
        best = self.layout.most(self.speeds)
        return self.least, best * np.maximum(self._shortest / self.least, LEAST_PART)

    def worst(self, x: Array) -> float:
        """The largest ratio with this X."""
        speed = self.layout.by_job(x, self.speeds)
        with np.errstate(divide="ignore"):
            rest = np.divide(self.part, speed, out=np.zeros_like(speed), where=self.part > 0)
        return float((self.done + rest).max())

    def close(self, ratio: float) -> float:
        """How far from the least ratio is near enough: more than the last digits of a float."""
        return max(CLOSE * (ratio - float(self.done[self.part > 0].max())), 1e-14 * ratio)

    def needs(self, ratio: float) -> Array:
        """The speed that each job needs for this ratio; never more than its highest."""
        rest = np.maximum(ratio - self.done, self._shortest)
        return np.divide(self.part, rest, out=np.zeros_like(rest), where=self.part > 0)
