# SPDX-License-Identifier: GPL-2.0-or-later
"""Max-min fairness that does not reward lies about throughputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from controller.model.solving import Cone, Problem, ProblemKind, Program, Solution
from controller.policies.allocations.allocation import Allocated, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import GavelStrategyProofSettings
from controller.policies.allocations.solving import none_can_run, seen


class StrategyProof:
    """Maximises the product of all throughputs (Nash welfare), and gives each job a part of its fractions:
    the product of what the others have, divided by what they would have without it.

    One problem for all jobs and one without each of them.
    """

    def __init__(self, settings: GavelStrategyProofSettings) -> None:
        self._settings = settings

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        return self._ask(layout, {"x": None, "parts": []})

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        if memory["x"] is None:
            x, parts = self._read(layout, solution), []
        else:
            x, parts = memory["x"], list(memory["parts"])
            without = self._without(given, layout, len(parts))
            alone = dict(zip(without.index, self._logs(without, self._read(without, solution)), strict=True))
            together = dict(zip(layout.index, self._logs(layout, x), strict=True))
            parts.append(math.exp(min(0.0, sum(together[job] - alone[job] for job in alone))))
        if len(parts) < len(layout.jobs) and len(layout.jobs) > 1:
            return self._ask(self._without(given, layout, len(parts)), {"x": x, "parts": parts})
        logs = self._logs(layout, x)
        shares = [
            fraction * (parts[key] if parts else 1.0)
            for fraction, (key, _) in zip(x, layout.columns, strict=True)
        ]
        return Allocated(
            fractions=fractions(layout, shares),
            objective=math.exp(sum(logs) / len(logs)),
            status="optimal",
        )

    def _layout(self, given: Given) -> Layout:
        return Layout(seen(given, self._settings, ones=True))

    def _without(self, given: Given, layout: Layout, number: int) -> Layout:
        left_out = layout.jobs[number].id
        others = tuple(job for job in given.jobs if job.id != left_out)
        return self._layout(replace(given, jobs=others, pairs=()))

    def _ask(self, layout: Layout, memory: Any) -> Asked:
        program = Program()
        first = program.variables(len(layout.columns)).start
        logarithms = program.variables(len(layout.jobs), -1.0)
        layout.add_validity(program, first)
        for job, logarithm in enumerate(logarithms):
            # exp(logarithm) <= throughput / fastest
            speed = [(column, -rate / layout.fastest(job)) for column, rate in layout.of_job[job]]
            program.cone(Cone.EXPONENTIAL, [([(logarithm, -1.0)], 0.0), ([], 1.0), (speed, 0.0)])
        # The number of the problem is its subject: without either of two equal jobs the problem is the same,
        # and a solver solves what it solved last only once.
        number = len(memory["parts"])
        return Asked(
            Problem(ProblemKind.CONIC, program.data(), self._settings.deadline_seconds, number), memory
        )

    def _read(self, layout: Layout, solution: Solution) -> list[float]:
        columns = len(layout.columns)
        return valid(layout, solved(solution, columns + len(layout.jobs))[:columns])

    def _logs(self, layout: Layout, x: list[float]) -> list[float]:
        """Logarithms of the throughputs, relative to each job's fastest type."""
        return [
            math.log(max(rate / layout.fastest(job), 1e-300))
            for job, rate in enumerate(layout.throughputs(x))
        ]
