# SPDX-License-Identifier: GPL-2.0-or-later
"""The table in docs/reliability.md: what was injected where, how often, what was checked, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pydantic import BaseModel, TypeAdapter

from tests.faults.checks import CHECKS
from tests.faults.fault import Result
from tests.faults.scenarios import JOURNAL_LOST

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin of what tests.faults writes -->", "<!-- end of what tests.faults writes -->"


class Line(BaseModel):
    """A result as it is kept between runs."""

    group: str
    what: str
    where: str
    detail: str
    times: int
    passed: bool
    evidence: str
    seconds: float
    converged_seconds: float | None

    @classmethod
    def of(cls, result: Result) -> Line:
        fault = result.fault
        return cls(
            group=fault.group,
            what=fault.what,
            where=fault.where,
            detail=fault.detail,
            times=fault.times,
            passed=result.passed,
            evidence=result.evidence,
            seconds=result.seconds,
            converged_seconds=result.converged_seconds,
        )

    @property
    def name(self) -> str:
        return f"{self.group}: {self.where}: {self.detail}"


_LINES = TypeAdapter(list[Line])


def save(results: Sequence[Result], path: Path, order: Sequence[str]) -> list[Line]:
    """Add results to those kept in a file, a later one of a fault instead of an earlier one. Returns all, in
    the order of the catalogue; what is not in it any more is dropped."""
    kept = _LINES.validate_json(path.read_bytes()) if path.exists() else []
    by_name = {line.name: line for line in kept} | {r.fault.name: Line.of(r) for r in results}
    lines = [by_name[name] for name in order if name in by_name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_LINES.dump_json(lines, indent=1))
    return lines


def write(results: Sequence[Line], page: Path = PAGE) -> None:
    """Put the results between the two marks of the page. Raises ValueError where these are missing."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks {BEGIN!r} and {END!r} are not there")
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n{END}{after}")


def table(results: Sequence[Line]) -> str:
    """Markdown: a summary, and one line for each fault and operation."""
    injected = sum(r.times for r in results)
    seconds = sum(r.seconds for r in results)
    failed = sum(not r.passed for r in results)
    lines = [
        f"{len(results)} faults of the catalogue, {injected} injections, in {seconds / 60:.0f} minutes: "
        f"**{len(results) - failed} passed, {failed} failed**.",
        "",
        "| fault | where | times | checked | right again after (median, longest) | outcome |",
        "|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str], list[Line]] = {}
    for result in results:
        rows.setdefault((result.what, _operation(result)), []).append(result)
    previous = ""
    for (what, operation), members in rows.items():
        times = sum(r.times for r in members)
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


def _checked(members: Sequence[Line]) -> str:
    """Numbers of the checks: time on GPUs cannot be looked up where the journal was lost."""
    return "1–4, 7–9" if members[0].group == JOURNAL_LOST else f"1–{len(CHECKS)}"


def _operation(result: Line) -> str:
    return result.where.partition(",")[0]


def _places(members: Sequence[Line]) -> str:
    """`cooperative (before pause, offload), gang (…)`."""
    by_kind: dict[str, dict[str, list[str]]] = {}
    for result in members:
        kind = result.where.partition(", ")[2]
        moment, _, step = result.detail.partition(" ")
        by_kind.setdefault(kind, {}).setdefault(moment, []).append(step)
    kinds = []
    for kind, moments in by_kind.items():
        places = "; ".join(f"{moment} {', '.join(steps)}" for moment, steps in moments.items())
        kinds.append(f"{kind} ({places})" if kind else places)
    return ", ".join(kinds)
