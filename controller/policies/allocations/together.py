# SPDX-License-Identifier: GPL-2.0-or-later
"""All jobs as fast as they can be, each in proportion to what it needs."""

from __future__ import annotations

import numpy as np

from controller.model.solving import Cone
from controller.policies.allocations.allocation import Solve
from controller.policies.allocations.checked import raised, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.solving import asked
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
