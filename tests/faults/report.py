# SPDX-License-Identifier: GPL-2.0-or-later
"""The table in docs/reliability.md: what was injected where, how often, what was checked, how it ended."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.faults.checks import CHECKS
from tests.faults.fault import Result
from tests.faults.scenarios import JOURNAL_LOST

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin of what tests.faults writes -->", "<!-- end of what tests.faults writes -->"


@dataclass(frozen=True, slots=True)
class Run:
    """The one run that a table is from."""

    commit: str
    day: datetime.date
    seconds: float
    clusters: int


def write(results: Sequence[Result], run: Run, page: Path = PAGE) -> None:
    """Put the results between the two marks of the page. Raises ValueError where these are missing."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks {BEGIN!r} and {END!r} are not there")
    page.write_text(f"{before}{BEGIN}\n\n{table(results, run)}\n{END}{after}")


def table(results: Sequence[Result], run: Run) -> str:
    """Markdown: a summary, and one line for each fault and operation."""
    injected = sum(r.fault.times for r in results)
    failed = sum(not r.passed for r in results)
    lines = [
        f"{len(results)} faults, {injected} injections, all in one run of {run.seconds / 60:.0f} minutes on "
        f"{run.clusters} mini clusters, {run.day}, commit {run.commit}: "
        f"**{len(results) - failed} passed, {failed} failed**.",
        "",
        "| fault | where | times | checked | right again after (median, longest) | outcome |",
        "|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.fault.what, _operation(result)), []).append(result)
    previous = ""
    for (what, operation), members in rows.items():
        times = sum(r.fault.times for r in members)
        bad = sum(not r.passed for r in members)
        found = [r.converged_seconds for r in members if r.passed and r.converged_seconds is not None]
        after = f"{median(found):.1f} s, {max(found):.1f} s" if found else "–"
        outcome = "passed" if bad == 0 else f"**{bad} failed**"
        shown = what if what != previous else "″"
        lines.append(
            f"| {shown} | {operation}: {_places(members)} | {times} | {_checked(members)} | {after} "
            f"| {outcome} |"
        )
        previous = what
    return "\n".join(lines) + "\n"


def _checked(members: Sequence[Result]) -> str:
    """Numbers of the checks: time on GPUs cannot be looked up where the journal was lost."""
    last = len(CHECKS)
    return f"1–4, 7–{last}" if members[0].fault.group == JOURNAL_LOST else f"1–{last}"


def _operation(result: Result) -> str:
    return result.fault.where.partition(",")[0]


def _places(members: Sequence[Result]) -> str:
    """`cooperative (before pause, offload), gang (…)`."""
    by_kind: dict[str, dict[str, list[str]]] = {}
    for result in members:
        kind = result.fault.where.partition(", ")[2]
        moment, _, step = result.fault.detail.partition(" ")
        by_kind.setdefault(kind, {}).setdefault(moment, []).append(step)
    kinds = []
    for kind, moments in by_kind.items():
        places = "; ".join(f"{moment} {', '.join(steps)}" for moment, steps in moments.items())
        kinds.append(f"{kind} ({places})" if kind else places)
    return ", ".join(kinds)
