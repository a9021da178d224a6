# SPDX-License-Identifier: GPL-2.0-or-later
"""States an allocation as a problem, and reads the solution when it is observed. No call waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from controller.model import Problem, Snapshot, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Asked, Given
from controller.policies.allocations.table import FractionTable, tabulated

PATIENCE_SECONDS = 5.0
"""So long a round that is due waits for a solution that is under way."""
FIRST_PATIENCE_SECONDS = 30.0
"""The same where no allocation has counted any job yet: the solver's process may have to start, and jobs that
begin without an allocation are bound where they are."""


class _Unsolved(AllocationError):
    """The solver failed."""


class Stated(Protocol):
    """An allocation that is one problem, or none."""

    def begin(self, given: Given) -> Asked | Allocated:
        """Raises AllocationError."""
        ...

    def read(self, solution: Solution) -> FractionTable:
        """Of what was asked last. Raises AllocationError."""
        ...


class AllocationProblem:
    """One allocation, over and over. What it must remember is JSON."""

    def __init__(self, allocation: Stated, name: str) -> None:
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
        at, retry_at = common.get("asked_at"), common.get("retry_at")
        self.asked_at = float(at) if isinstance(at, int | float) else 0.0
        self._retry_at = float(retry_at) if isinstance(retry_at, int | float) else 0.0
        self.error = str(common.get("error", ""))
        """Why the last try came to nothing."""
        self._refused = bool(self.error) and common.get("refused") is True
        """Not because the solver failed: that is known without this."""
        self._at_once: FractionTable | None = None
        """What needs no solving."""
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
            "asked_at": self.asked_at,
            "retry_at": self._retry_at,
            "error": self.error,
            "refused": self._refused,
        }

    @property
    def refused(self) -> dict[str, str]:
        """Why its problem could not be stated, or its solution is of no use, by the problem's name."""
        return {self._name: self.error} if self._refused else {}

    @property
    def under_way(self) -> bool:
        return bool(self._asked)

    def patient_until(self, due: float, *, allocated: bool) -> float:
        """A round that is due then waits so long for an allocation. `allocated`: there was one before."""
        known = bool(self.error) or allocated
        return min(self.asked_at, due) + (PATIENCE_SECONDS if known else FIRST_PATIENCE_SECONDS)

    def read(self, snapshot: Snapshot, retry_at: float) -> FractionTable | None:
        """What was solved and is new."""
        self.problems = {}
        try:
            return self._read(snapshot)
        except AllocationError as error:
            self._fail(error, retry_at)
        return None

    def wants(self, now: float, wanted: str) -> bool:
        """Whether a problem is to be stated."""
        if self._asked:
            # What the controller before asked is not solved any more.
            return not self._stated
        return wanted != self._solved and now >= self._retry_at

    def ask(
        self, snapshot: Snapshot, wanted: str, retry_at: float, make_given: Callable[[], Given]
    ) -> FractionTable | None:
        """State it. Returns what needs no solving, or is solved already."""
        try:
            self._ask(self.asked_at if self._asked else snapshot.time, wanted, make_given())
            return self._read(snapshot)
        except AllocationError as error:
            self._fail(error, retry_at)
        return None

    def _ask(self, asked_at: float, wanted: str, given: Given) -> None:
        """Raises AllocationError."""
        answer = self._allocation.begin(given)
        self._asked, self.asked_at = wanted, asked_at
        if isinstance(answer, Allocated):
            self._at_once = tabulated(answer.fractions, given.types)
        else:
            self._identity, self._stated = answer.problem.identity, True
            self.problems = {self._name: answer.problem}

    def _read(self, snapshot: Snapshot) -> FractionTable | None:
        """What is new: of the problem under way, or what needed none. Raises AllocationError."""
        if self._at_once is not None:
            at_once, self._at_once = self._at_once, None
            return self._done(at_once)
        if not self._asked:
            return None
        solution = snapshot.solutions.get(self._name)
        if solution is None or solution.problem != self._identity:
            return None
        if solution.status is not SolutionStatus.FAILED:
            self.problems = {}
            return self._done(self._allocation.read(solution))
        if snapshot.changed.everything or self._name in snapshot.changed.solutions:
            raise _Unsolved(solution.error)
        return None

    def _done(self, fractions: FractionTable) -> FractionTable:
        self._solved, self._asked, self._identity = self._asked, "", ""
        self.error, self._refused, self._retry_at = "", False, 0.0
        return fractions

    def _fail(self, error: AllocationError, retry_at: float) -> None:
        """The last allocation goes on."""
        self._asked, self._identity = "", ""
        self.error, self._refused = str(error), not isinstance(error, _Unsolved)
        self._retry_at, self.problems = retry_at, {}
