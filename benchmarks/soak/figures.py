# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of a run, the table of them, and the plot."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.soak.rules import Evidence
from benchmarks.soak.turns import Turn, in_use, percentile, switches

MIB = 1 << 20
POINTS = 180
_RPC = re.compile(r"^\s+([A-Z_]+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:(\d+)\s+total_time:(\d+)", re.MULTILINE)


def figures(raw: Mapping[str, Any], turns: Sequence[Turn]) -> dict[str, Any]:
    """Everything that docs/performance.md says, from the raw record of a run."""
    begin, end = raw["begin"], raw["end"]
    seconds = end - begin
    pairs = [(a, b) for a, b in switches(turns) if begin <= b.begin <= end]
    resumes = [b.begin - a.end for a, b in pairs if not b.first]
    starts = [b.begin - a.end for a, b in pairs if b.first]
    inside = [t for t in turns if t.end > begin and t.begin < end]
    busy = sum(min(t.end, end) - max(t.begin, begin) for t in inside)
    found: dict[str, Any] = {
        "seconds": seconds,
        "nodes": raw["nodes"],
        "gpus": raw["gpus"],
        "jobs_live": raw["live"],
        "jobs_in_all": raw["jobs"],
        "slice_seconds": raw["slice_seconds"],
        "gpus_in_use_share": busy / (seconds * raw["gpus"]),
        "switches": len(pairs),
        "switches_per_second": len(pairs) / seconds,
        "gap_resume_count": len(resumes),
        "gap_resume_p50_seconds": percentile(resumes, 0.5),
        "gap_resume_p99_seconds": percentile(resumes, 0.99),
        "gap_start_count": len(starts),
        "gap_start_p50_seconds": percentile(starts, 0.5),
        "gap_start_p99_seconds": percentile(starts, 0.99),
        "parts": {**_parts(raw, "ctl"), **_parts(raw, "nodes")},
        "rpcs": _rpcs(raw["sdiag"], seconds),
        **_ticks(raw),
        "counters": _counters(raw),
    }
    return found


def _within(raw: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [s for s in raw["samples"][name] if raw["begin"] <= s["time"] <= raw["end"]]


def _parts(raw: Mapping[str, Any], name: str) -> dict[str, dict[str, float]]:
    """Processor share and memory by kind of process."""
    samples = _within(raw, name)
    found = {}
    for kind in sorted({kind for sample in samples for kind in sample["kinds"]}):
        mine = [(s["time"], s["kinds"][kind]) for s in samples if kind in s["kinds"]]
        (t0, first), (t1, last) = mine[0], mine[-1]
        # Processes that ended take their count with them: only growth is added up.
        used = sum(
            max(0.0, b["cpu_seconds"] - a["cpu_seconds"]) for (_, a), (_, b) in itertools.pairwise(mine)
        )
        found[kind] = {
            "processes": last["processes"],
            "cpu_share": used / (t1 - t0) if t1 > t0 else 0.0,
            "rss_begin_bytes": first["rss_bytes"],
            "rss_end_bytes": last["rss_bytes"],
            "rss_most_bytes": max(item["rss_bytes"] for _, item in mine),
            "threads": last["threads"],
            "descriptors": last["descriptors"],
        }
    return found


def _rpcs(sdiag: str, seconds: float) -> dict[str, dict[str, float]]:
    text = sdiag.partition("Remote Procedure Call statistics by message type")[2].partition(
        "Remote Procedure Call statistics by user"
    )[0]
    return {
        name: {
            "per_second": int(count) / seconds,
            "mean_ms": int(mean) / 1e3,
            "cpu_share": int(total) / 1e6 / seconds,
        }
        for name, count, mean, total in _RPC.findall(text)
    }


def _counters(raw: Mapping[str, Any]) -> dict[str, float]:
    """What the controller counted during the run."""
    samples = [s["metrics"] for s in _within(raw, "ctl") if s["metrics"]]
    if not samples:
        return {}
    first, last = samples[0], samples[-1]
    return {
        name: value - first.get(name, 0.0)
        for name, value in last.items()
        if ("_total" in name) and value != first.get(name, 0.0)
    }


def _ticks(raw: Mapping[str, Any]) -> dict[str, float]:
    """Turns of the loop: how many, and what looking and deciding took, by the controller's histograms."""
    samples = [s for s in _within(raw, "ctl") if s["metrics"]]
    if len(samples) < 2:
        return {}
    first, last = samples[0]["metrics"], samples[-1]["metrics"]
    span = samples[-1]["time"] - samples[0]["time"]
    ticks = last.get("gandiva_ticks_total", 0.0) - first.get("gandiva_ticks_total", 0.0)
    found = {"ticks_per_second": ticks / span}
    for name in ("observe", "plan"):
        start = f'gandiva_{name}_duration_seconds_bucket{{le="'
        counts = [
            (float(key[len(start) : -2]), value - first.get(key, 0.0))
            for key, value in last.items()
            if key.startswith(start)
        ]
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            found[f"{name}_{label}_seconds"] = quantile(sorted(counts), share)
    return found


def quantile(counts: Sequence[tuple[float, float]], share: float) -> float:
    """Of a histogram given as (upper end, how many are at most that); a straight line within a bucket."""
    if not counts or not counts[-1][1]:
        return 0.0
    wanted = share * counts[-1][1]
    low, before = 0.0, 0.0
    for high, count in counts:
        if count >= wanted:
            if math.isinf(high):
                return low
            return low + (high - low) * (wanted - before) / max(count - before, 1e-9)
        low, before = high, count
    return low


# -- showing ----------------------------------------------------------------------------------------------


def show(say: Console, found: Mapping[str, Any], seen: Evidence) -> None:
    """Print the figures."""
    table = Table("", "", title="Soak")
    rows = {
        "nodes, GPUs": f"{found['nodes']}, {found['gpus']}",
        "jobs live, in all": f"{found['jobs_live']}, {found['jobs_in_all']}",
        "under load": f"{found['seconds']:.0f} s, slices of {found['slice_seconds']:g} s",
        "GPU time in mini-batches": f"{found['gpus_in_use_share']:.1%}",
        "switches of a GPU": f"{found['switches']} ({found['switches_per_second']:.2f}/s)",
        "gap, next job resumes": f"{found['gap_resume_p50_seconds']:.2f} s median, "
        f"{found['gap_resume_p99_seconds']:.2f} s p99 ({found['gap_resume_count']})",
        "gap, next job starts": f"{found['gap_start_p50_seconds']:.2f} s median, "
        f"{found['gap_start_p99_seconds']:.2f} s p99 ({found['gap_start_count']})",
        "turns of the loop": f"{found.get('ticks_per_second', 0):.2f}/s",
        "a look at all of it": _two(found, "observe"),
        "a decision": _two(found, "plan"),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    say.print(table)
    table = Table("part", "processes", "processor", "memory MiB, begin", "end", "threads", "descriptors")
    for kind, part in found["parts"].items():
        table.add_row(
            kind,
            f"{part['processes']:.0f}",
            f"{part['cpu_share']:.1%}",
            f"{part['rss_begin_bytes'] / MIB:.0f}",
            f"{part['rss_end_bytes'] / MIB:.0f}",
            f"{part['threads']:.0f}",
            f"{part['descriptors']:.0f}" if part["descriptors"] else "",
        )
    say.print(table)
    table = Table("RPC to slurmctld", "per second", "mean ms")
    for name, rpc in sorted(found["rpcs"].items(), key=lambda item: -item[1]["per_second"]):
        if rpc["per_second"] >= 0.01:
            table.add_row(name, f"{rpc['per_second']:.2f}", f"{rpc['mean_ms']:.2f}")
    say.print(table)
    ends = Counter(state for state, _ in seen.slurm.values())
    say.print(f"ends of jobs: {dict(ends)}; counted: {found['counters']}", highlight=False)


def _two(found: Mapping[str, Any], name: str) -> str:
    median, worst = (1e3 * found.get(f"{name}_{label}_seconds", 0.0) for label in ("p50", "p99"))
    return f"{median:.0f} ms median, {worst:.0f} ms p99"


def plot(raw: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    """GPUs in use, and the controller's processor share and memory, over time: three curves, one picture."""
    begin, end = raw["begin"], raw["end"]
    used = in_use(turns, begin, end, POINTS)
    samples = _within(raw, "ctl")
    cpu, rss = [], []
    step = max(1, len(samples) // POINTS)
    for a, b in zip(samples[::step], samples[step::step], strict=False):
        if "controller" in a["kinds"] and "controller" in b["kinds"]:
            mine, before = b["kinds"]["controller"], a["kinds"]["controller"]
            share = (mine["cpu_seconds"] - before["cpu_seconds"]) / (b["time"] - a["time"])
            cpu.append((b["time"] - begin, share * 100))
            rss.append((b["time"] - begin, mine["rss_bytes"] / MIB))
    charts = [
        ("GPUs in use", used, float(raw["gpus"])),
        ("controller: processor, % of one core", cpu, max([100.0, *(y for _, y in cpu)])),
        ("controller: resident memory, MiB", rss, 1.2 * max([1.0, *(y for _, y in rss)])),
    ]
    parts = [_STYLE]
    for i, (title, line, top) in enumerate(charts):
        parts += _chart(i * 150, title, line, end - begin, top)
    return "\n".join([*parts, "</svg>", ""])


_STYLE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 460" role="img" '
    'aria-label="GPUs in use, controller processor share and memory over time" font-family="sans-serif" '
    'font-size="11"><rect width="720" height="460" fill="white"/>'
)


def _chart(
    y0: float, title: str, line: Sequence[tuple[float, float]], seconds: float, top: float
) -> list[str]:
    left, width, height = 60, 640, 100

    def place(x: float, y: float) -> str:
        return f"{left + x / seconds * width:.1f},{y0 + 30 + height - y / top * height:.1f}"

    parts = [f'<text x="{left}" y="{y0 + 20}" font-weight="bold">{html.escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = y0 + 30 + height * (1 - share)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{top * share:.0f}</text>')
    for i in range(6):
        x = seconds * i / 5
        px = left + width * i / 5
        parts.append(f'<text x="{px}" y="{y0 + 46 + height}" text-anchor="middle">{x / 60:.0f} min</text>')
    points = " ".join(place(x, y) for x, y in line)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>')
    return parts
