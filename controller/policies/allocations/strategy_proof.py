# SPDX-License-Identifier: GPL-2.0-or-later
"""Max-min fairness that does not reward lies about throughputs."""

from dataclasses import replace

import numpy as np

from controller.model.solving import Cone, ProblemKind
from controller.policies.allocations.allocation import Allocated, Solve
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Array, Layout
from controller.policies.allocations.solving import LaidOut
from controller.solver.program import Program


class StrategyProof(LaidOut):
    """Maximises the product of all throughputs (Nash welfare), and gives each job a part of its fractions:
    the product of what the others have, divided by what they would have without it.

    One problem for all jobs and one without each of them.
    """

    ones = True

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        x = _largest_product(layout, solve)
        logs, parts = _logs(layout, x), np.ones(len(layout.jobs))
        for number, left_out in enumerate(layout.jobs if len(layout.jobs) > 1 else ()):
            others = tuple(job for job in layout.given.jobs if job.id != left_out.id)
            without = self.layout(replace(layout.given, jobs=others, pairs=()))
            alone = _logs(without, _largest_product(without, solve))
            parts[number] = np.exp(min(0.0, (np.delete(logs, number) - alone).sum()))
        return Allocated(
            fractions=fractions(layout, x * parts[layout.key_of]),
            objective=float(np.exp(logs.mean())),
            status="optimal",
        )


def _largest_product(layout: Layout, solve: Solve) -> Array:
    """The X with the largest product of all throughputs."""
    jobs, program = np.arange(len(layout.jobs)), Program()
    program.variables(layout.size)
    logarithms = program.variables(len(jobs), -1.0).start
    layout.add_validity(program, 0)
    # exp(logarithm) <= throughput / fastest
    program.block(
        Cone.EXPONENTIAL,
        np.tile([0.0, 1.0, 0.0], len(jobs)),
        (3 * jobs, logarithms + jobs, -1.0),
        (3 * layout.job + 2, layout.column, -layout.rate / layout.fastest[layout.job]),
        rows_each=3,
    )
    return valid(layout, solved(solve(ProblemKind.CONIC, program.arrays()), program.size)[: layout.size])


def _logs(layout: Layout, x: Array) -> Array:
    """Logarithms of the throughputs, relative to each job's fastest type."""
    return np.log(np.maximum(layout.by_job(x) / layout.fastest, 1e-300))
