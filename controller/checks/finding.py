# SPDX-License-Identifier: GPL-2.0-or-later
"""What was found at one place."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Level(str, enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, or could not be examined from here."""
    ERROR = "error"
    """Jobs cannot be shared as they should until it is changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    level: Level
    where: str
    """The host, node or file it is about."""
    check: str
    """What was checked, in one or two words."""
    found: str
    change: str = ""
    """What to change, with the line and the file; empty where all is well."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What findings are about: a host, node or file, and what is checked of it."""

    where: str
    check: str

    def ok(self, found: str) -> Finding:
        """All is well."""
        return Finding(Level.OK, self.where, self.check, found)

    def warning(self, found: str, change: str) -> Finding:
        """It should be changed."""
        return Finding(Level.WARNING, self.where, self.check, found, change)

    def error(self, found: str, change: str) -> Finding:
        """It must be changed."""
        return Finding(Level.ERROR, self.where, self.check, found, change)


def exit_status(findings: Iterable[Finding]) -> int:
    """0: all is well; 1: warnings only; 2: errors."""
    levels = {finding.level for finding in findings}
    return 2 if Level.ERROR in levels else 1 if Level.WARNING in levels else 0
