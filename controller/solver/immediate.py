# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves at once, for virtual time: no second of the simulation passes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from controller.model.solving import Problem, ProblemKind, Solution, SolutionStatus
from controller.solver.frames import InvalidAnswer, decode, encode, failed

if TYPE_CHECKING:
    from controller.solver.solve import Solve


class ImmediateSolver:
    """Implements `SolverPort` in this process. Deadlines, which are real seconds, do not count."""

    def __init__(self, load_others: Callable[[], Mapping[ProblemKind, Solve]] = dict) -> None:
        """`load_others`: for kinds of problems that are not the solvers' own."""
        self._load_others = load_others
        self._last: dict[str, Solution] = {}
        self._solved: dict[str, Solution] = {}

    def submit(self, name: str, problem: Problem, on_solved: Callable[[], None]) -> None:
        # numpy and scipy take a moment to load, and most policies state no problem.
        from controller.solver.solve import answer

        last = self._last.get(name)
        if last is not None and last.problem == problem.identity and last.status is not SolutionStatus.FAILED:
            return
        try:
            solution = decode(problem, answer(encode(problem), self._load_others()))
        except InvalidAnswer as error:
            solution = failed(problem, str(error))
        self._last[name] = self._solved[name] = solution
        on_solved()

    def take(self) -> Mapping[str, Solution]:
        solved, self._solved = self._solved, {}
        return solved

    async def close(self) -> None:
        """Nothing is under way."""
