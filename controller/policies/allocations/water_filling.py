# SPDX-License-Identifier: GPL-2.0-or-later
"""Hierarchical max-min fairness by water filling: Pareto-efficient, over entities and their jobs."""

from __future__ import annotations

from typing import Any

from controller.model.solving import Cone, Problem, ProblemKind, Program, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, Asked, Entity, Given
from controller.policies.allocations.checked import fractions, solved, valid
from controller.policies.allocations.layout import Layout, Row
from controller.policies.allocations.settings import GavelHierarchicalSettings
from controller.policies.allocations.shares import equal_throughputs
from controller.policies.allocations.solving import asked, none_can_run, seen

RISES = 1e-5
"""A level can rise if it can by this part of itself and of an equal split. To stay too early costs a job no
more than that; to go on too late holds up all others."""

GOOD = (SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE)


class WaterFilling:
    """Raises the levels of all jobs together, by their weights, until some can rise no further; those stay,
    and the others go on. A job's level is its throughput relative to an equal split.

    After each rise, problems of their own find out who can still rise: the largest sum of further rises shows
    some, the same for the others shows more, until it is nothing. Gavel's code has one problem with whole
    numbers for that. By convexity, jobs that can rise one by one can rise together.
    """

    def __init__(self, settings: GavelHierarchicalSettings) -> None:
        self._settings = settings
        self._exact = settings.formulation == "exact"

    def begin(self, given: Given) -> Asked | Allocated:
        layout = self._layout(given)
        if not layout.jobs:
            return none_can_run(given)
        return self._ask_rise(layout, [0.0] * len(layout.jobs), [])

    def go_on(self, given: Given, memory: Any, solution: Solution) -> Asked | Allocated:
        layout = self._layout(given)
        levels, frozen = list(memory["levels"]), list(memory["frozen"])
        columns = len(layout.columns)
        if solution.status not in GOOD and not memory["corner"]:
            return self._ask(layout, memory | {"corner": True})
        if memory["undecided"] is None:
            values = solved(solution, 1 + columns)
            rise, x = max(0.0, values[0]), valid(layout, values[1:])
            weights = _weights(layout, set(frozen))
            # Never above what X has: then the next problem has a solution.
            levels = [
                min(level + rise * weight / job.gpus, reached)
                for level, weight, job, reached in zip(
                    levels, weights, layout.jobs, self._levels(layout, x), strict=True
                )
            ]
            undecided = [job for job, weight in enumerate(weights) if weight > 0]
            return self._ask_who_rises(layout, levels, frozen, undecided, x)
        undecided, x = memory["undecided"], memory["x"]
        rises = solved(solution, columns + len(undecided))[columns:]
        still = [job for job, by in zip(undecided, rises, strict=True) if by <= (levels[job] + 1) * RISES]
        if still and len(still) < len(undecided):
            return self._ask_who_rises(layout, levels, frozen, still, x)
        if not still and not memory["corner"]:
            # A job stopped the last rise.
            weights = _weights(layout, set(frozen))
            all_of_them = [job for job, weight in enumerate(weights) if weight > 0]
            return self._ask(layout, memory | {"undecided": all_of_them, "corner": True})
        frozen += still
        if not still or len(frozen) == len(layout.jobs):
            return Allocated(
                fractions=fractions(layout, x), objective=sum(self._levels(layout, x)), status="optimal"
            )
        return self._ask_rise(layout, levels, frozen)

    def _layout(self, given: Given) -> Layout:
        seen_so = seen(given, self._settings, ones=True, exact=self._exact)
        return Layout(seen_so, pairs=self._settings.space_sharing, exact=self._exact)

    def _levels(self, layout: Layout, x: list[float]) -> list[float]:
        return [sum(part * x[column] for column, part in row) for row in _parts(layout)]

    def _ask_rise(self, layout: Layout, levels: list[float], frozen: list[int]) -> Asked:
        """How far can the levels rise together?"""
        memory = {"levels": levels, "frozen": frozen, "undecided": None, "x": None, "corner": False}
        return self._ask(layout, memory)

    def _ask_who_rises(
        self, layout: Layout, levels: list[float], frozen: list[int], undecided: list[int], x: list[float]
    ) -> Asked:
        """Which of the undecided can rise further, if no level falls?"""
        memory = {"levels": levels, "frozen": frozen, "undecided": undecided, "x": x, "corner": False}
        return self._ask(layout, memory)

    def _ask(self, layout: Layout, memory: dict[str, Any]) -> Asked:
        """The problem that this memory is about. `corner`: by the simplex method, after another solver failed
        near the end, where levels have no room left."""
        undecided, levels = memory["undecided"], memory["levels"]
        program = Program()
        rises: dict[int, tuple[int, float]] = {}
        if undecided is None:
            together = program.variables(1, -1.0)[0]
            weights = _weights(layout, set(memory["frozen"]))
            rises = {
                number: (together, weights[number] / job.gpus)
                for number, job in enumerate(layout.jobs)
                if weights[number] > 0
            }
            first = program.variables(len(layout.columns)).start
        else:
            first = program.variables(len(layout.columns)).start
            further = program.variables(len(undecided), -1.0)
            rises = {job: (variable, 1.0) for job, variable in zip(undecided, further, strict=True)}
            program.cone(Cone.NONNEGATIVE, (([(variable, -1.0)], 0.0) for variable in further))
        program.cone(
            Cone.NONNEGATIVE,
            (
                ([*((first + column, -part) for column, part in row), *_only(rises.get(job))], -levels[job])
                for job, row in enumerate(_parts(layout))
            ),
        )
        layout.add_validity(program, first)
        if memory["corner"]:
            problem = Problem(ProblemKind.VERTEX, program.data(), self._settings.deadline_seconds)
            return Asked(problem, memory)
        return asked(self._settings, program, memory)


def _only(term: tuple[int, float] | None) -> Row:
    return [] if term is None else [term]


def _parts(layout: Layout) -> list[Row]:
    """What each column adds to a job's level."""
    return [
        [(column, rate / equal) for column, rate in row]
        for row, equal in zip(layout.of_job, equal_throughputs(layout), strict=True)
    ]


def _weights(layout: Layout, frozen: set[int]) -> list[float]:
    """How fast each level rises: the entity's weight, split among its jobs that are not frozen, or all of it
    for the first of them."""
    weights = [0.0] * len(layout.jobs)
    for entity in layout.given.entities or (Entity(""),):
        mine = [
            number
            for number, job in enumerate(layout.jobs)
            if number not in frozen and (not layout.given.entities or job.entity == entity.name)
        ]
        if entity.policy == "fifo":
            mine.sort(key=lambda number: (layout.jobs[number].arrival, layout.jobs[number].id))
            for number in mine[:1]:
                weights[number] = entity.weight
        else:
            whole = sum(layout.jobs[number].weight for number in mine)
            for number in mine:
                weights[number] = entity.weight * layout.jobs[number].weight / whole
    return weights
