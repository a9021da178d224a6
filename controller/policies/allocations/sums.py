# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations that maximise a weighted sum of throughputs: in all, or the first come first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from controller.model.solving import Program, Solution
from controller.policies.allocations.allocation import Allocated, Asked, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import (
    GavelFifoSettings,
    GavelMaxThroughputSettings,
    SolvedSettings,
)
from controller.policies.allocations.solving import asked, none_can_run, seen


def gains(layout: Layout, weights: list[float]) -> list[float]:
    """What each column adds: the throughputs of its jobs, each times its weight."""
    found = [0.0] * len(layout.columns)
    for weight, row in zip(weights, layout.of_job, strict=True):
        for column, rate in row:
            found[column] += weight * rate
    return found


def total(x: list[float], of_column: list[float]) -> float:
    return sum(fraction * gain for fraction, gain in zip(x, of_column, strict=True))


def most(layout: Layout, program: Program, of_column: list[float]) -> None:
    """The program: the largest sum. Gains are divided by their largest, so that all numbers are small;
    Gavel's code has them as they are."""
    unit = (max(of_column, default=0.0) or 1.0) if layout.exact else 1.0
    for gain in of_column:
        program.variables(1, -gain / unit)
    layout.add_validity(program, 0)


class _LargestSum(ABC):
    """Maximises the sum of what each column adds."""

    _settings: SolvedSettings

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        program = Program()
        most(layout, program, self._gains(layout))
        return asked(self._settings, program)

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        x = valid(layout, solved(solution, len(layout.columns)))
        return Allocated(
            fractions=fractions(layout, x),
            objective=total(x, self._gains(layout)),
            status=solution.status.value,
        )

    @abstractmethod
    def _layout(self, given: Given) -> Layout:
        """The jobs that count, and where each may be."""

    @abstractmethod
    def _gains(self, layout: Layout) -> list[float]:
        """What each column adds."""


class MaxThroughput(_LargestSum):
    """Maximises the sum of all throughputs."""

    _settings: GavelMaxThroughputSettings

    def __init__(self, settings: GavelMaxThroughputSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def _layout(self, given: Given) -> Layout:
        seen_so = seen(given, self._settings, ones=True, exact=self._exact)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _gains(self, layout: Layout) -> list[float]:
        return gains(layout, units(layout, self._settings.normalised))


def units(layout: Layout, normalised: bool) -> list[float]:
    """What a step of each job counts."""
    return [1 / layout.fastest(job) if normalised else 1.0 for job in range(len(layout.jobs))]


class Fifo(_LargestSum):
    """Maximises the sum of throughputs, each relative to the job's fastest type, times the number of jobs
    from this one to the last by arrival."""

    _settings: GavelFifoSettings

    def __init__(self, settings: GavelFifoSettings) -> None:
        self._settings = settings

    def _layout(self, given: Given) -> Layout:
        return Layout(seen(given, self._settings, ones=True), pairs=self._settings.space_sharing)

    def _gains(self, layout: Layout) -> list[float]:
        order = by_arrival(layout)
        behind = {job: len(order) - rank for rank, job in enumerate(order)}
        return gains(layout, [behind[job] / layout.fastest(job) for job in range(len(layout.jobs))])


def by_arrival(layout: Layout) -> list[int]:
    """The numbers of the jobs, the earliest first."""
    return sorted(range(len(layout.jobs)), key=lambda job: (layout.jobs[job].arrival, layout.jobs[job].id))
