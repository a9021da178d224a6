# SPDX-License-Identifier: GPL-2.0-or-later
"""What was found at one place, and the findings as a table for people, or as JSON."""

import enum
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from controller.reports import units
from controller.reports.text import clean, fit, width

HEADER = ("RESULT", "WHERE", "CHECK")
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


def exit_status(findings: Iterable[Finding]) -> int:
    """0: all is well; 1: warnings only; 2: errors."""
    levels = {finding.level for finding in findings}
    return 2 if Level.ERROR in levels else 1 if Level.WARNING in levels else 0


def table(findings: Sequence[Finding], columns: int) -> Iterator[str]:
    """Lines that fit the terminal; the change is below what was found."""
    folded = _folded(findings)
    rows = [HEADER, *((f.level.value, clean(f.where), clean(f.check)) for f in folded)]
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    starts = [
        " ".join(fit(word, size, left=True) for word, size in zip(row, widths, strict=True)) for row in rows
    ]
    indent = sum(widths) + 3
    room = max(_MIN_FOUND, columns - indent)
    yield f"{starts[0]} FOUND"
    for finding, start in zip(folded, starts[1:], strict=True):
        first, *others = _wrapped(finding.found, room) or [""]
        yield f"{start} {first}".rstrip()
        yield from (" " * indent + line for line in [*others, *_wrapped(finding.change, room, "-> ")])
    yield summary(findings)


def _wrapped(text: str, room: int, arrow: str = "") -> list[str]:
    # Lines to be copied into a file must not be broken inside a word.
    wrapper = textwrap.TextWrapper(
        room, arrow, " " * len(arrow), break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(clean(text))


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Equal findings of level ok share a line, so that a thousand nodes take as little room as one."""
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        same = (finding.check, finding.found) if finding.level is Level.OK else number
        groups.setdefault(same, []).append(finding)
    return [
        replace(first, where=f"{first.where} and {len(more)} more") if more else first
        for first, *more in groups.values()
    ]


def summary(findings: Sequence[Finding]) -> str:
    """`41 checks: 1 error, 2 warnings`."""
    counts = Counter(finding.level for finding in findings)
    bad = [level for level in (Level.ERROR, Level.WARNING) if counts[level]]
    words = [units.several(counts[level], level.value) for level in bad]
    return f"{units.several(len(findings), 'check')}: {', '.join(words) or 'all is well'}"


def as_json(findings: Sequence[Finding]) -> str:
    """One object: `findings`, `errors`, `warnings`, `status` (the exit status)."""
    counts = Counter(finding.level for finding in findings)
    values = {
        "status": exit_status(findings),
        "errors": counts[Level.ERROR],
        "warnings": counts[Level.WARNING],
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(values, indent=2)
