# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers and tables of a simulation."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from controller.simulation.driver import Outcome


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Of sorted values, with linear interpolation between neighbours."""
    if not ordered:
        return 0.0
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(outcome: Outcome) -> dict[str, str | int | float]:
    """The JSON answer of `gandiva simulate`; keys carry their units."""
    jobs = outcome.jobs
    jcts = sorted(job.jct_seconds for job in jobs)
    begin = min((job.submit_seconds for job in jobs), default=0.0)
    end = max((job.end_seconds for job in jobs), default=0.0)
    makespan = end - begin
    decisions = outcome.decision_seconds
    return {
        "policy": outcome.policy,
        "jobs": outcome.submitted,
        "completed": len(jobs),
        "makespan_seconds": makespan,
        "avg_jct_seconds": fmean(jcts) if jcts else 0.0,
        "median_jct_seconds": median(jcts) if jcts else 0.0,
        "p95_jct_seconds": percentile(jcts, 0.95),
        "p99_jct_seconds": percentile(jcts, 0.99),
        "avg_queueing_seconds": fmean(job.queueing_seconds for job in jobs) if jobs else 0.0,
        "gpu_utilization_fraction": outcome.gpu_seconds / (outcome.gpus * makespan) if makespan else 0.0,
        "preemptions": sum(job.preemptions for job in jobs),
        "migrations": sum(job.migrations for job in jobs),
        "decisions": len(decisions),
        "mean_decision_seconds": fmean(decisions) if decisions else 0.0,
        "p99_decision_seconds": percentile(sorted(decisions), 0.99),
        "wall_seconds": outcome.wall_seconds,
    }


def write_jobs(outcome: Outcome, path: Path) -> None:
    """One line per job, as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            (
                "job_id",
                "gpus",
                "submit_seconds",
                "start_seconds",
                "end_seconds",
                "jct_seconds",
                "queueing_seconds",
                "run_seconds",
                "preemptions",
                "migrations",
            )
        )
        for job in outcome.jobs:
            times = (job.submit_seconds, job.start_seconds, job.end_seconds, job.jct_seconds)
            more = (job.queueing_seconds, job.run_seconds)
            numbers = [f"{value:.3f}".rstrip("0").rstrip(".") for value in (*times, *more)]
            writer.writerow((job.id, job.gpus, *numbers, job.preemptions, job.migrations))


def shown_seconds(seconds: float) -> str:
    """A time as Slurm writes it."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


_COLUMNS = (
    ("Policy", "policy"),
    ("Jobs", "completed"),
    ("AvgJCT", "avg_jct_seconds"),
    ("MedJCT", "median_jct_seconds"),
    ("P95JCT", "p95_jct_seconds"),
    ("P99JCT", "p99_jct_seconds"),
    ("AvgQueue", "avg_queueing_seconds"),
    ("Makespan", "makespan_seconds"),
    ("GPUUtil", "gpu_utilization_fraction"),
    ("Preempt", "preemptions"),
    ("Migrate", "migrations"),
    ("Wall", "wall_seconds"),
)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Header, dashes, one line per simulation."""
    rows = [[title for title, _ in _COLUMNS]]
    for outcome in outcomes:
        values = summary(outcome)
        row = []
        for _, key in _COLUMNS:
            value = values[key]
            if key == "wall_seconds":
                row.append(f"{value:.2f}s")
            elif key.endswith("_seconds"):
                row.append(shown_seconds(float(value)))
            elif key.endswith("_fraction"):
                row.append(f"{float(value):.1%}")
            else:
                row.append(str(value))
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    rows.insert(1, ["-" * width for width in widths])
    return [
        " ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
