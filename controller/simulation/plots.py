# SPDX-License-Identifier: GPL-2.0-or-later
"""Plots of simulations: the distribution of job completion times, and GPUs in use over time.

As text for the terminal, and as SVG in one HTML page that needs nothing from elsewhere.
"""

import html
import itertools
import math
from collections.abc import Callable, Sequence

from controller.model.clock import shown_seconds
from controller.simulation.metrics import assumptions, percentile, summary
from controller.simulation.outcome import Outcome

_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_MARKS = "●■▲◆○□△◇"
Line = tuple[str, list[tuple[float, float]]]


def usage_line(outcome: Outcome, points: int) -> list[tuple[float, float]]:
    """GPUs in use, averaged over each of `points` equal parts of the time."""
    usage = outcome.usage
    if not usage:
        return []
    begin, end = usage[0][0], usage[-1][0]
    width = (end - begin) / points
    if width <= 0:
        return [(begin, float(usage[0][1]))]
    sums = [0.0] * points
    for (time, gpus), (until, _) in itertools.pairwise(usage):
        part = int((time - begin) / width)
        while time < until and part < points:
            edge = min(until, begin + (part + 1) * width)
            sums[part] += gpus * max(0.0, edge - time)
            time = max(time, edge)
            part += 1
    return [(begin + (i + 0.5) * width, total / width) for i, total in enumerate(sums)]


def jct_line(outcome: Outcome, points: int) -> list[tuple[float, float]]:
    """Share of jobs (0 to 1) that took at most so long, against the logarithm of that time."""
    ordered = sorted(job.jct_seconds for job in outcome.jobs)
    shares = [i / (points - 1) for i in range(points)]
    return [(math.log10(max(1.0, percentile(ordered, share))), share) for share in shares]


def _lines(outcomes: Sequence[Outcome], points: int) -> tuple[list[Line], list[Line]]:
    """Both, of each simulation."""
    jct = [(outcome.label, jct_line(outcome, points)) for outcome in outcomes]
    return jct, [(outcome.label, usage_line(outcome, points)) for outcome in outcomes]


# -- text -------------------------------------------------------------------------------------------------


def text_plot(
    lines: Sequence[Line], x_label: Callable[[float], str], columns: int, rows: int = 14
) -> list[str]:
    """Lines drawn with marks; the first drawn is on top."""
    xs = [x for _, line in lines for x, _ in line]
    ys = [y for _, line in lines for _, y in line]
    if not xs:
        return []
    low, high, top = min(xs), max(xs), max(max(ys), 1e-9)
    width = max(20, columns - 9)
    grid = [[" "] * width for _ in range(rows)]
    for number, (_, line) in reversed(list(enumerate(lines))):
        for x, y in line:
            column = int((x - low) / (high - low or 1.0) * (width - 1))
            row = rows - 1 - int(y / top * (rows - 1))
            grid[row][column] = _MARKS[number % len(_MARKS)]
    shown = []
    for i, cells in enumerate(grid):
        value = top * (rows - 1 - i) / (rows - 1)
        label = f"{value:7.3g}" if i in (0, rows // 2, rows - 1) else " " * 7
        shown.append(f"{label} |{''.join(cells).rstrip()}")
    left, right = x_label(low), x_label(high)
    shown.append(" " * 8 + "+" + "-" * width)
    shown.append(" " * 9 + left + " " * max(1, width - len(left) - len(right)) + right)
    return shown


def text_plots(outcomes: Sequence[Outcome], columns: int) -> list[str]:
    names = "  ".join(f"{_MARKS[i % len(_MARKS)]} {o.label}" for i, o in enumerate(outcomes))
    jct, usage = _lines(outcomes, points=max(20, columns - 9))
    return [
        "",
        f"Share of jobs that took at most so long (logarithmic)   {names}",
        *text_plot(jct, lambda x: shown_seconds(10**x), columns),
        "",
        f"GPUs in use over time   {names}",
        *text_plot(usage, shown_seconds, columns),
    ]


# -- HTML -------------------------------------------------------------------------------------------------


def svg(
    title: str, lines: Sequence[Line], x_label: Callable[[float], str], y_label: Callable[[float], str]
) -> str:
    width, height, left, bottom = 720, 320, 70, 40
    xs = [x for _, line in lines for x, _ in line]
    ys = [y for _, line in lines for _, y in line]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    top = max([*ys, 1e-9])
    span = high - low or 1.0
    # The last label has its middle at the end of the axis. Letters are at most 8 wide.
    right = width - max(10, 4 * len(x_label(high)))

    def place(x: float, y: float) -> str:
        px = left + (x - low) / span * (right - left)
        py = height - bottom - y / top * (height - bottom - 30)
        return f"{px:.1f},{py:.1f}"

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{left}" y="18" class="t">{html.escape(title)}</text>',
    ]
    for i in range(5):
        y = top * i / 4
        py = place(low, y).split(",")[1]
        parts.append(f'<line x1="{left}" x2="{right}" y1="{py}" y2="{py}" class="g"/>')
        parts.append(f'<text x="{left - 6}" y="{py}" class="r">{html.escape(y_label(y))}</text>')
        x = low + span * i / 4
        px = place(x, 0).split(",")[0]
        parts.append(f'<text x="{px}" y="{height - bottom + 18}" class="m">{html.escape(x_label(x))}</text>')
    for i, (name, line) in enumerate(lines):
        colour = _COLOURS[i % len(_COLOURS)]
        points = " ".join(place(x, y) for x, y in line)
        parts.append(
            f'<polyline points="{points}" stroke="{colour}"><title>{html.escape(name)}</title></polyline>'
        )
    parts.append("</svg>")
    return "\n".join(parts)


_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: CanvasText; background: Canvas; color-scheme: light dark }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
td:first-child, th:first-child { text-align: left }
svg { width: 100%; height: auto; margin-top: 1rem } svg polyline { fill: none; stroke-width: 2 }
svg text { font-size: 12px; fill: currentColor } .r { text-anchor: end; dominant-baseline: middle }
.m { text-anchor: middle } .g { stroke: #8884 } .t { font-weight: bold } .wide { overflow-x: auto }
"""


def page(outcomes: Sequence[Outcome], title: str) -> str:
    keys = [key for key in summary(outcomes[0]) if key != "label"] if outcomes else []
    head = "".join(
        f'<th><span style="color:{_COLOURS[i % len(_COLOURS)]}">■</span> {html.escape(o.label)}</th>'
        for i, o in enumerate(outcomes)
    )
    values = [summary(o) for o in outcomes]
    rows = "\n".join(
        f"<tr><td>{key}</td>" + "".join(f"<td>{_number(v[key])}</td>" for v in values) + "</tr>"
        for key in keys
    )
    jct, usage = _lines(outcomes, points=400)
    share = svg(
        "Share of jobs that took at most so long", jct, lambda x: shown_seconds(10**x), lambda y: f"{y:.0%}"
    )
    in_use = svg("GPUs in use over time", usage, shown_seconds, lambda y: f"{y:.0f}")
    assumed = "".join(f"<li>{html.escape(line)}</li>" for line in assumptions(outcomes)[2:])
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n"
        f'<div class="wide"><table><tr><th></th>{head}</tr>\n{rows}</table></div>'
        f"<p>Assumed:</p><ul>{assumed}</ul>\n{share}\n{in_use}\n"
        "</body></html>\n"
    )


def _number(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1 else f"{value:,.1f}"
    return html.escape(str(value))
