# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop asks of a solver."""

from collections.abc import Callable, Mapping
from typing import Protocol

from controller.model.solving import Problem, Solution


class SolverPort(Protocol):
    """Takes problems, and hands out solutions when they are there. No call waits for a solution."""

    def submit(self, name: str, problem: Problem, on_solved: Callable[[], None]) -> None:
        """Solve it. A problem of the same name that is not being solved yet is dropped; nothing happens where
        that name's last problem has the same identity, unless it failed.

        Args:
            on_solved: called once its solution can be taken, which may be at once.
        """

    def take(self) -> Mapping[str, Solution]:
        """Solutions since the last call, by the names of their problems. Every problem that was not dropped
        gets one; where none was found its status is FAILED."""

    async def close(self) -> None:
        """Give up what is not solved yet."""
