# SPDX-License-Identifier: GPL-2.0-or-later
"""Table and plot of `benchmarks.learning_curves`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.pages import put_table

BEGIN, END = "<!-- table: benchmarks.learning_curves -->", "<!-- end of learning curves -->"
BASE = "to the end"
COLORS = {
    "gandiva": "#1f5fa8",
    "to the end": "0.45",
    "stopped": "#8a6d1d",
    "kill and queue": "#c1571b",
    "Ray Tune": "#7b4fa3",
}
COLUMNS = (
    "best trial at",
    "way",
    "first result of the last trial, s",
    "best trial at its end, s",
    "times as soon",
    "all over, s",
    "GPU time of mini-batches, s",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of one way with one order of trials."""

    way: str
    position: float
    """Of the best trial, from 0 to 1."""
    load: float
    first_seconds: float
    best_seconds: float
    total_seconds: float
    gpu_seconds: float
    points: Sequence[Sequence[float]]
    """Time, and the best accuracy of any trial so far."""


def shown(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Headings, means of each way for each order, and for all of them where there are several."""
    lines: list[tuple[str, ...]] = [COLUMNS]
    positions = sorted({row.position for row in rows})
    for position in positions:
        mine = [row for row in rows if row.position == position]
        lines += [_line(f"{position:.0%}", way, _of(mine, way), _of(mine, BASE)) for way in _ways(mine)]
    if len(positions) > 1:
        lines += [_line("mean", way, _of(rows, way), _of(rows, BASE)) for way in _ways(rows)]
    return lines


def _ways(rows: Sequence[Row]) -> list[str]:
    return [way for way in COLORS if any(row.way == way for row in rows)]


def _of(rows: Sequence[Row], way: str) -> list[Row]:
    return [row for row in rows if row.way == way]


def _line(position: str, way: str, rows: Sequence[Row], base: Sequence[Row]) -> tuple[str, ...]:
    best = fmean(row.best_seconds for row in rows)
    sooner = f"{fmean(row.best_seconds for row in base) / best:.2f}" if base else ""
    return (
        position,
        way,
        f"{fmean(row.first_seconds for row in rows):.1f}",
        f"{best:.1f}",
        sooner,
        f"{fmean(row.total_seconds for row in rows):.1f}",
        f"{fmean(row.gpu_seconds for row in rows):.0f}",
    )


def write(rows: Sequence[Row], page: Path) -> None:
    """Put the table between its marks, and the plot into the page's folder `images`."""
    heading, *lines = [f"| {' | '.join(line)} |" for line in shown(rows)]
    put_table(page, BEGIN, END, [heading, "|---" * len(COLUMNS) + "|", *lines])
    draw(rows, page.parent / "images" / "learning-curves.svg")


def draw(rows: Sequence[Row], path: Path) -> None:
    """The best accuracy so far over time, a panel for each order."""
    from matplotlib.figure import Figure

    positions = sorted({row.position for row in rows})
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, len(positions), sharey=True, sharex=True, squeeze=False)[0]
    longest = max(row.total_seconds for row in rows)
    for axes, position in zip(panels, positions, strict=True):
        mine = [row for row in rows if row.position == position]
        for way in _ways(mine):
            for number, row in enumerate(_of(mine, way)):
                times, reached = zip(*row.points, strict=True)
                line = [(0.0, *times, longest), (0.0, *reached, reached[-1])]
                label = "_" if number else way
                axes.step(*line, where="post", color=COLORS[way], linewidth=1.1, label=label)
                axes.plot(row.best_seconds, reached[-1], "o", color=COLORS[way], markersize=5, alpha=0.8)
        axes.set_title(f"best trial at {position:.0%} of the order", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.5)
    panels[0].set_xscale("log")
    panels[0].set_xlim(3, longest)
    panels[0].set_xticks([3, 10, 30, 100], ["3", "10", "30", "100"])
    panels[0].set_ylim(0.3, 0.95)
    panels[0].set_ylabel("best accuracy of any trial so far", fontsize=9)
    panels[-1].legend(fontsize=7, frameon=False, loc="lower right")
    figure.supxlabel("seconds (logarithmic); a dot: the best trial is at its end", fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
