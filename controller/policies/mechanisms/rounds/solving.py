# SPDX-License-Identifier: GPL-2.0-or-later
"""States what an allocation asks, and reads the solutions as they are observed. No call waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from controller.model import Problem, Snapshot, Solution, SolutionStatus
from controller.policies.allocations.allocation import (
    Allocated,
    Allocation,
    AllocationError,
    Asked,
    Fractions,
    Given,
)
from controller.policies.mechanisms.rounds import given_data

PATIENCE_SECONDS = 5.0
"""So long a round that is due waits for a solution that is under way."""
_MOST_STEPS = 10_000
"""Of one allocation whose problems are all solved already."""


class Solving:
    """One allocation, over and over. What it must remember is JSON."""

    def __init__(self, allocation: Allocation, name: str) -> None:
        """`name`: of its problems."""
        self._allocation, self._name = allocation, name
        self.reset({})

    def reset(self, common: Mapping[str, Any]) -> None:
        """Begin anew with what was remembered, which may be damaged."""
        self._solved = str(common.get("solved", ""))
        """Which jobs and GPUs the last allocation was for."""
        self._asked = str(common.get("asked", ""))
        """Which the one under way is for. Empty: none is."""
        self._identity = str(common.get("problem", ""))
        """Of the problem that was stated last."""
        self._memory: Any = common.get("memory")
        at, retry_at = common.get("asked_at"), common.get("retry_at")
        self.asked_at = float(at) if isinstance(at, int | float) else 0.0
        self._retry_at = float(retry_at) if isinstance(retry_at, int | float) else 0.0
        self.error = str(common.get("error", ""))
        """Why the last try came to nothing."""
        self._stated = False
        """By this object, so that a solution is to be expected."""
        self.problems: dict[str, Problem] = {}
        """To be stated with this plan."""

    def common(self) -> dict[str, Any]:
        """What to remember."""
        return {
            "solved": self._solved,
            "asked": self._asked,
            "problem": self._identity,
            "memory": self._memory,
            "asked_at": self.asked_at,
            "retry_at": self._retry_at,
            "error": self.error,
        }

    @property
    def under_way(self) -> bool:
        return bool(self._asked)

    def advance(
        self, snapshot: Snapshot, wanted: str, retry_at: float, make_given: Callable[[], Given]
    ) -> Fractions | None:
        """Read what was solved, and ask for what is to be solved next.

        Args:
            wanted: digest of the jobs and GPUs to be allocated now.
            retry_at: when to try again what fails now.
            make_given: states them.

        Returns:
            An allocation that is new, else None.
        """
        self.problems, asked_at = {}, snapshot.time
        found: Fractions | None = None
        news = snapshot.changed.everything or self._name in snapshot.changed.solutions
        solution = snapshot.solutions.get(self._name)
        if self._asked and not self._stated and not self._is_answer(solution):
            # What the controller before asked is not solved any more.
            self._asked, asked_at = "", min(self.asked_at, asked_at)
        for _ in range(_MOST_STEPS):
            try:
                if not self._asked:
                    if wanted == self._solved or snapshot.time < self._retry_at:
                        break
                    given = make_given()
                    answer = self._allocation.begin(given)
                    self._asked, self.asked_at, news = wanted, asked_at, False
                elif solution is None or not self._is_answer(solution):
                    break
                elif solution.status is SolutionStatus.FAILED:
                    if news:
                        self._fail(solution.error, retry_at)
                    break
                else:
                    raw, own = solution.subject
                    given = given_data.load(raw)
                    answer = self._allocation.go_on(given, self._memory, replace(solution, subject=own))
            except AllocationError as error:
                self._fail(str(error), retry_at)
                break
            if isinstance(answer, Allocated):
                found = answer.fractions
                self._solved, self._asked, self._memory = self._asked, "", None
                self._identity, self.error, self._retry_at = "", "", 0.0
                self.problems = {}
            else:
                self._ask(answer, given)
        return found

    def _is_answer(self, solution: Solution | None) -> bool:
        return solution is not None and solution.problem == self._identity

    def _ask(self, asked: Asked, given: Given) -> None:
        """State the problem. What it was made of goes with it."""
        problem = replace(asked.problem, subject=[given_data.dump(given), asked.problem.subject])
        self._identity, self._memory, self._stated = problem.identity, asked.memory, True
        self.problems = {self._name: problem}

    def _fail(self, error: str, retry_at: float) -> None:
        """The last allocation goes on."""
        self._asked, self._identity, self._memory = "", "", None
        self.error, self._retry_at, self.problems = error, retry_at, {}
