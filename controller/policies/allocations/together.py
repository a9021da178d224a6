# SPDX-License-Identifier: GPL-2.0-or-later
"""All jobs as fast as they can be, each in proportion to what it needs: Gavel's max-min fairness (LAS), and
the least makespan."""

import numpy as np

from controller.model.solving import Cone
from controller.policies.allocations.allocation import Allocated, AllocationError, Solve
from controller.policies.allocations.checked import fractions, raised, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.shares import equal_throughputs, fixed, isolated
from controller.policies.allocations.solving import LaidOut, asked, seconds_left
from controller.solver.program import Program

LEAST_PART = 1e-3
"""Of the largest need: rows of jobs that need less are not scaled further."""


def together(
    layout: Layout, gains: Array, needs: Array, solve: Solve, settings: AllocationSettings
) -> tuple[Array, float, str]:
    """The X with which all jobs have as many times what they need as possible, how many times that is, and
    the status. Raises AllocationError.

    Args:
        gains: by term: what all of the time there would give the job.
        needs: by job: how much of that it needs. At least one needs something.
    """
    # All is relative to the best of the job, and to a bound on the answer.
    most = layout.most(gains)
    gains, parts = gains / most[layout.job], needs / most
    about = max(parts.max(), (parts * layout.of_jobs("gpus")).sum() / layout.limits.sum())
    parts = parts / about
    some, program = parts > 0, Program()
    times = program.variables(1, 1.0).start  # negative
    first = program.variables(layout.size).start
    # A row for each job, divided by what it needs, so that a solver's tolerance is one of the answer.
    unit = np.maximum(parts, LEAST_PART)
    needed = (np.arange(some.sum()), times, -(parts / unit)[some])
    rows = layout.terms(first, -gains / unit[layout.job], some)
    program.block(Cone.NONNEGATIVE, np.zeros(some.sum()), needed, rows)
    layout.add_validity(program, first)
    found = asked(solve, settings, program)
    values = solved(found, program.size)
    x = raised(layout, valid(layout, values[first:]), gains, parts * -values[times])
    return x, -values[times] / about, found[0].value


class MaxMin(LaidOut):
    """Maximises the least share. A job's share is its effective throughput relative to that of an equal split
    of all types, times its GPUs, divided by its weight."""

    ones = True

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        weight, gpus = layout.of_jobs("weight")[layout.job], layout.of_jobs("gpus")[layout.job]
        equal = equal_throughputs(layout)[layout.job]
        shares: Array = (layout.rate * ((1.0 / weight) * (1.0 / equal))) * gpus
        x, _, status = together(layout, shares, np.ones(len(layout.jobs)), solve, self._settings)
        objective = float(layout.by_job(x, shares).min())
        return Allocated(fractions=fractions(layout, x), objective=objective, status=status)


class Makespan(LaidOut):
    """Minimises the time until the last job ends, at constant throughputs. One linear problem."""

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        """The objective is the makespan, in seconds."""
        left = seconds_left(layout, self._settings.assumed_seconds)
        if not left.any():
            return fixed(layout, isolated(layout), "no job has steps left")
        x, _, status = together(layout, layout.rate, left * layout.fastest, solve, self._settings)
        speeds, some = layout.by_job(x) / layout.fastest, left > 0
        if (speeds[some] <= 0).any():
            raise AllocationError("the solver left a job out: the makespan would be infinite")
        most = float((left[some] / speeds[some]).max())
        return Allocated(fractions=fractions(layout, x), objective=most, status=status)
