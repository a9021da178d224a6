# SPDX-License-Identifier: GPL-2.0-or-later
"""What a stage found: rows, written to a file as they come."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAILED, NOT_RUN, FIGURE = "ok", "FAILED", "not run", ""


@dataclass(frozen=True)
class Row:
    """One finding. `verdict` is empty for a figure that nothing is expected of."""

    what: str
    value: str
    verdict: str = FIGURE
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The rows of one stage."""

    stage: str
    path: Path
    rows: list[Row] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

    def figure(self, what: str, value: str, **data: Any) -> None:
        """Something measured."""
        self._add(Row(what, value, FIGURE, data))

    def check(self, what: str, passed: bool, value: str, **data: Any) -> None:
        """Something that must be so."""
        self._add(Row(what, value, OK if passed else FAILED, data))

    def not_run(self, what: str, why: str) -> None:
        """Something that could not be tried here."""
        self._add(Row(what, why, NOT_RUN))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(line_of(self.stage, row), flush=True)
        self.save()

    def save(self) -> None:
        """Whole or not at all: a stage may be killed at any moment."""
        draft = self.path.with_suffix(".new")
        found = {
            "seconds": round(time.monotonic() - self.begin, 1),
            "rows": [asdict(row) for row in self.rows],
        }
        draft.write_text(json.dumps(found))
        draft.rename(self.path)


def load(path: Path) -> tuple[float, list[Row]]:
    """Seconds and rows of a stage; none where it has written none."""
    if not path.exists():
        return 0.0, []
    found = json.loads(path.read_text())
    return found["seconds"], [Row(**row) for row in found["rows"]]


def line_of(stage: str, row: Row) -> str:
    """A row as text."""
    return f"{stage:8} {row.verdict:8} {row.what}: {row.value}"


def write_results(folder: Path, head: Mapping[str, Any], stages: Mapping[str, Mapping[str, Any]]) -> None:
    """`results.json` and `table.txt`."""
    _replace(folder / "results.json", json.dumps({**head, "stages": stages}, indent=1) + "\n")
    lines = [f"{name}: {value}" for name, value in head.items()]
    for stage, found in stages.items():
        lines += ["", f"{stage}: {found['status']}, {found['seconds']:.0f} s"]
        lines += [line_of(stage, Row(**row)) for row in found["rows"]]
    _replace(folder / "table.txt", "\n".join(lines) + "\n")


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


def worst(rows: Sequence[Row]) -> str:
    """The verdict on a stage."""
    verdicts = {row.verdict for row in rows}
    return next((verdict for verdict in (FAILED, NOT_RUN) if verdict in verdicts), OK)
