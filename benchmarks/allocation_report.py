# SPDX-License-Identifier: GPL-2.0-or-later
"""Table and plot of `benchmarks.allocations`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import put_table

BEGIN, END = "<!-- table: benchmarks.allocations -->", "<!-- end of allocations -->"
SHOWN = (32, 256, 2048)
"""Numbers of jobs that have columns of their own."""
PANELS = {
    "max-min fairness": "max_min_fairness",
    "finish-time fairness": "finish_time_fairness",
    "makespan": "min_total_duration",
    "throughput, cost": "max_sum_throughput",
    "water filling": "max_min_fairness_water_filling",
    "others": "",
}
"""Titles, and the longest beginning of the policies' names that are in them."""
Rows = Sequence[Mapping[str, Any]]


def write(rows: Rows, page: Path) -> None:
    """Put the table between its marks, and the plot into the page's folder `images`."""
    put_table(page, BEGIN, END, [table(rows)])
    draw(rows, page.parent / "images" / "allocations.svg")


def table(rows: Rows) -> str:
    """One line for each policy."""
    named = "".join(f" {jobs:,} jobs |" for jobs in SHOWN)
    lines = [
        f"| Gavel's policy |{named} the most jobs of theirs | times as fast there | growth of theirs, ours |",
        "|---" * (4 + len(SHOWN)) + "|",
    ]
    for policy, mine in _by_policy(rows).items():
        both = [row for row in mine if row["theirs_seconds"] and row["ours_seconds"]]
        if not both:
            continue
        at = {row["jobs"]: row for row in mine}
        shown = "".join(f" {_pair(at.get(jobs))} |" for jobs in SHOWN)
        last = both[-1]
        ended = next((row["theirs_failed"] for row in mine if row["theirs_failed"]), "")
        most = f"{last['jobs']:,}: {_pair(last)}" + (f"; then {_why(ended)}" if ended else "")
        ratio = last["theirs_seconds"] / last["ours_seconds"]
        grown = ", ".join(_growth(both, side) for side in ("theirs_seconds", "ours_seconds"))
        lines.append(f"| `{policy}` |{shown} {most} | {_figure(ratio)} | {grown} |")
    return "\n".join(lines)


def _figure(ratio: float) -> str:
    """To two digits, or to the whole number."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _by_policy(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: int(row["jobs"])):
        found.setdefault(row["policy"], []).append(row)
    return dict(sorted(found.items()))


def _pair(row: Mapping[str, Any] | None) -> str:
    """Theirs / ours."""
    return "" if row is None else " / ".join(_time(row[side]) for side in ("theirs_seconds", "ours_seconds"))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def _why(failed: str) -> str:
    """Why theirs ended."""
    return failed if failed.startswith("more than") else "its solver fails"


def _growth(rows: Rows, side: str) -> str:
    """The exponent between the last number of jobs and a quarter of it, or the first."""
    if len(rows) < 2:
        return "–"
    first, last = rows[max(0, len(rows) - 3)], rows[-1]
    return f"{math.log(last[side] / first[side]) / math.log(last['jobs'] / first['jobs']):.1f}"


def draw(rows: Rows, path: Path) -> None:
    """Time over jobs, both axes logarithmic: theirs dashed, ours solid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = dict(zip(PANELS, figure.subplots(2, 3, sharex=True, sharey=True).flat, strict=True))
    names = _by_policy(rows)
    colors = ["#1f5fa8", "#c1571b", "#4a8f3c", "#7b4fa3", "#8a6d1d", "#b03060", "#555555"]
    for title, axes in panels.items():
        mine = [name for name in names if _panel(name) == title]
        for color, name in zip(colors, mine, strict=False):
            for side, style in (("theirs_seconds", "--"), ("ours_seconds", "-")):
                points = [(row["jobs"], row[side]) for row in names[name] if row[side]]
                label = _short(name) if side == "ours_seconds" else None
                if points:
                    axes.loglog(*zip(*points, strict=True), style, color=color, marker=".", label=label)
        if not mine:
            axes.set_axis_off()
            continue
        axes.set_title(title, fontsize=9)
        axes.legend(fontsize=6, frameon=False)
        axes.set_xticks([32, 128, 512, 2048], ["32", "128", "512", "2,048"])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.5)
    figure.supxlabel("jobs; dashed: Gavel's code, solid: ours", fontsize=9)
    figure.supylabel("CPU seconds of one allocation", fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(policy: str) -> str:
    """The title of the panel that a policy is in."""
    if "strategy_proof" in policy:
        return "others"
    fits = [title for title, start in PANELS.items() if policy.startswith(start)]
    return max(fits, key=lambda title: len(PANELS[title]))


def _short(policy: str) -> str:
    """What differs within a panel."""
    for start in sorted(filter(None, PANELS.values()), key=len, reverse=True):
        if policy.startswith(start) and "strategy" not in policy:
            rest = policy.removeprefix(start).strip("_").replace("normalized_by_cost_", "cost, ")
            return rest.replace("_", " ") or "agnostic"
    return policy.removeprefix("max_min_fairness_").replace("_", " ")
