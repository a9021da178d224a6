# SPDX-License-Identifier: GPL-2.0-or-later
"""States an allocation as a problem, and reads the solution when it is observed. No call waits for one."""

from collections.abc import Callable
from typing import Protocol

from controller.model import Problem, Snapshot, Solution, SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Given
from controller.policies.allocations.table import FractionTable, tabulated
from controller.policies.mechanisms.rounds.memory import RoundMemory

PATIENCE_SECONDS = 5.0
"""So long a round that is due waits for a solution that is under way."""
FIRST_PATIENCE_SECONDS = 30.0
"""The same where no allocation has counted any job yet: the solver's process may have to start, and jobs that
begin without an allocation are bound where they are."""


class _Unsolved(AllocationError):
    """The solver failed."""


class Stated(Protocol):
    """An allocation that is one problem, or none."""

    def begin(self, given: Given) -> Problem | Allocated:
        """Raises AllocationError."""

    def read(self, solution: Solution) -> FractionTable:
        """Of what was asked last. Raises AllocationError."""


class AllocationProblem:
    """One allocation, over and over."""

    def __init__(self, allocation: Stated, name: str, memory: RoundMemory) -> None:
        """`name`: of its problems."""
        self._allocation, self._name, self._memory = allocation, name, memory
        self._at_once: FractionTable | None = None
        """What needs no solving."""
        self._stated = False
        """By this object, so that a solution is to be expected."""
        self.problems: dict[str, Problem] = {}
        """To be stated with this plan."""

    @property
    def refused(self) -> dict[str, str]:
        """Why its problem could not be stated, or its solution is of no use, by the problem's name."""
        return {self._name: self._memory.error} if self._memory.refused else {}

    @property
    def under_way(self) -> bool:
        return bool(self._memory.asked)

    def patient_until(self, due: float, *, allocated: bool) -> float:
        """A round that is due then waits so long for an allocation. `allocated`: there was one before."""
        known = bool(self._memory.error) or allocated
        return min(self._memory.asked_at, due) + (PATIENCE_SECONDS if known else FIRST_PATIENCE_SECONDS)

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
        if self._memory.asked:
            # What the controller before asked is not solved any more.
            return not self._stated
        return wanted != self._memory.solved and now >= self._memory.retry_at

    def ask(
        self, snapshot: Snapshot, wanted: str, retry_at: float, make_given: Callable[[], Given]
    ) -> FractionTable | None:
        """State it. Returns what needs no solving, or is solved already."""
        try:
            self._ask(self._memory.asked_at if self._memory.asked else snapshot.time, wanted, make_given())
            return self._read(snapshot)
        except AllocationError as error:
            self._fail(error, retry_at)
        return None

    def _ask(self, asked_at: float, wanted: str, given: Given) -> None:
        """Raises AllocationError."""
        answer = self._allocation.begin(given)
        self._memory.asked, self._memory.asked_at = wanted, asked_at
        if isinstance(answer, Allocated):
            self._at_once = tabulated(answer.fractions, given.types)
        else:
            self._memory.problem, self._stated = answer.identity, True
            self.problems = {self._name: answer}

    def _read(self, snapshot: Snapshot) -> FractionTable | None:
        """What is new: of the problem under way, or what needed none. Raises AllocationError."""
        if self._at_once is not None:
            at_once, self._at_once = self._at_once, None
            return self._done(at_once)
        if not self._memory.asked:
            return None
        solution = snapshot.solutions.get(self._name)
        if solution is None or solution.problem != self._memory.problem:
            return None
        if solution.status is not SolutionStatus.FAILED:
            self.problems = {}
            return self._done(self._allocation.read(solution))
        if snapshot.changed.everything or self._name in snapshot.changed.solutions:
            raise _Unsolved(solution.error)
        return None

    def _done(self, fractions: FractionTable) -> FractionTable:
        self._memory.solved, self._memory.asked, self._memory.problem = self._memory.asked, "", ""
        self._memory.error, self._memory.refused, self._memory.retry_at = "", False, 0.0
        return fractions

    def _fail(self, error: AllocationError, retry_at: float) -> None:
        """The last allocation goes on."""
        self._memory.asked, self._memory.problem = "", ""
        self._memory.error, self._memory.refused = str(error), not isinstance(error, _Unsolved)
        self._memory.retry_at, self.problems = retry_at, {}
