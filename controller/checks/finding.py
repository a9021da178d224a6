# SPDX-License-Identifier: GPL-2.0-or-later
"""What was found at one place, and the findings as a table for people, or as JSON."""

import enum
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from controller.reports import units
from controller.reports.text import clean, fit, width

HEADER = ("RESULT", "WHERE", "CHECK", "FOUND")
_ARROW = "-> "
_MIN_FOUND = 24


class Level(str, enum.Enum):
    OK = "ok"
    WARNING = "warning"
    """It works, or could not be examined from here."""
    ERROR = "error"
    """Jobs cannot be shared as they should until it is changed."""


@dataclass(frozen=True, slots=True)
class Finding:
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
        return Finding(Level.OK, self.where, self.check, found)

    def warning(self, found: str, change: str) -> Finding:
        return Finding(Level.WARNING, self.where, self.check, found, change)

    def error(self, found: str, change: str) -> Finding:
        return Finding(Level.ERROR, self.where, self.check, found, change)


def some(names: Sequence[str]) -> str:
    """The first three, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def exit_status(findings: Iterable[Finding]) -> int:
    """0: all is well; 1: warnings only; 2: errors."""
    levels = {finding.level for finding in findings}
    return 2 if Level.ERROR in levels else 1 if Level.WARNING in levels else 0


def table(findings: Sequence[Finding], columns: int) -> Iterator[str]:
    """Lines that fit the terminal; the change is below what was found."""
    findings, counted = _folded(findings), findings
    rows = [(f.level.value, clean(f.where), clean(f.check)) for f in findings]
    widths = [max(width(row[i]) for row in [*rows, HEADER[:3]]) for i in range(3)]
    indent = sum(widths) + 3
    room = max(_MIN_FOUND, columns - indent)
    yield " ".join(fit(word, size, left=True) for word, size in zip(HEADER, widths, strict=False)) + " FOUND"
    for finding, row in zip(findings, rows, strict=True):
        start = " ".join(fit(word, size, left=True) for word, size in zip(row, widths, strict=True))
        lines = _wrapped(finding.found, room)
        yield f"{start} {lines[0]}".rstrip()
        for line in lines[1:]:
            yield " " * indent + line
        for number, line in enumerate(_wrapped(finding.change, room - len(_ARROW)) if finding.change else []):
            yield " " * indent + (_ARROW if number == 0 else " " * len(_ARROW)) + line
    yield summary(counted)


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Equal findings of level ok share a line, so that a thousand nodes take as little room as one."""
    places: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.level is Level.OK:
            places.setdefault((finding.check, finding.found), []).append(finding.where)
    folded = []
    for finding in findings:
        if finding.level is Level.OK:
            where = places.pop((finding.check, finding.found), None)
            if where is None:
                continue
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            finding = replace(finding, where=where[0] + more)
        folded.append(finding)
    return folded


def _wrapped(text: str, room: int) -> list[str]:
    # Lines to be copied into a file must not be broken inside a word.
    return textwrap.wrap(clean(text), room, break_long_words=False, break_on_hyphens=False) or [""]


def summary(findings: Sequence[Finding]) -> str:
    """`41 checks: 1 error, 2 warnings`."""
    counts = {level: sum(f.level is level for f in findings) for level in (Level.ERROR, Level.WARNING)}
    words = [units.several(count, level.value) for level, count in counts.items() if count]
    return f"{units.several(len(findings), 'check')}: {', '.join(words) or 'all is well'}"


def as_json(findings: Sequence[Finding]) -> str:
    """One object: `findings`, `errors`, `warnings`, `status` (the exit status)."""
    return json.dumps(
        {
            "status": exit_status(findings),
            "errors": sum(f.level is Level.ERROR for f in findings),
            "warnings": sum(f.level is Level.WARNING for f in findings),
            "findings": [asdict(finding) for finding in findings],
        },
        indent=2,
    )
