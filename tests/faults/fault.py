# SPDX-License-Identifier: GPL-2.0-or-later
"""What a fault is, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.stage import Stage


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a fault that ended well."""

    text: str
    converged_seconds: float | None = None
    """From the repair to the moment when every job was at work again or had ended."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one place."""

    group: str
    """Faults of one group share a round: one set of jobs, one look at the books at its end."""
    what: str
    where: str
    """The operation or situation; one line of the table."""
    detail: str
    """The exact place in it."""
    run: Callable[[Stage], Evidence]
    """Raises FaultFailed, NotReached."""
    times: int = 1
    """How often it happens in one run."""

    @property
    def name(self) -> str:
        return f"{self.group}: {self.where}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a fault ended."""

    fault: Fault
    passed: bool
    evidence: str
    seconds: float
    converged_seconds: float | None = None
