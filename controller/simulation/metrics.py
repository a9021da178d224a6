# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers and tables of a simulation."""

import csv
from collections.abc import Sequence
from dataclasses import fields
from statistics import fmean, median
from typing import TextIO

from controller.model import SuspendMethod
from controller.model.clock import shown_seconds
from controller.settings.schema import Settings
from controller.simulation.outcome import JobOutcome, Outcome


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
        "policy": outcome.settings.policy.name,
        "label": outcome.label,
        "suspend": outcome.settings.requests.suspend.value,
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


def write_jobs(outcomes: Sequence[Outcome], file: TextIO, *, labelled: bool) -> None:
    """One line per job, as CSV. `labelled`: with a column that says of which simulation."""
    writer = csv.writer(file, lineterminator="\n")
    _, gpus, *numbers = (field.name for field in fields(JobOutcome))
    writer.writerow((*(("policy",) if labelled else ()), "job_id", gpus, *numbers))
    for outcome in outcomes:
        label = (outcome.label,) if labelled else ()
        for job in outcome.jobs:
            shown = (f"{getattr(job, name):.3f}".rstrip("0").rstrip(".") for name in numbers)
            writer.writerow((*label, job.id, job.gpus, *shown))


def assumptions(outcomes: Sequence[Outcome]) -> list[str]:
    """How each simulation preempts jobs and what that costs, for below the table."""
    width = max(len(outcome.label) for outcome in outcomes)
    return ["", "Assumed:", *[f"  {o.label:<{width}}  {_assumed(o.settings)}" for o in outcomes]]


def _assumed(settings: Settings) -> str:
    if settings.policy.name in ("fifo", "fifo-skip"):
        return "no preemption"
    costs, method = settings.simulation, settings.requests.suspend
    if method is not SuspendMethod.REQUEUE:
        parts = f"{costs.step_seconds:g} s to a step boundary, {costs.suspend_seconds:g} s off the GPUs"
        return f"suspend ({method.value}): {parts}, {costs.resume_seconds:g} s back to the same GPUs"
    speed = costs.checkpoint_bytes_per_second
    seconds = costs.checkpoint_bytes / speed if speed else 0.0
    parts = f"checkpoint {seconds:g} s to write and to read (where the model's size is not known)"
    return f"requeue: {parts}, {costs.requeue_seconds:g} s in Slurm, {costs.restart_seconds:g} s to restart"


_COLUMNS = (
    ("Policy", "label"),
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
    summaries, columns = [summary(outcome) for outcome in outcomes], []
    for title, key in _COLUMNS:
        cells = [title, *(_shown(key, values[key]) for values in summaries)]
        width = max(map(len, cells))
        aligned = str.ljust if key == "label" else str.rjust
        columns.append([aligned(cell, width) for cell in (title, "-" * width, *cells[1:])])
    return [" ".join(row) for row in zip(*columns, strict=True)]


def _shown(key: str, value: str | int | float) -> str:
    if key == "wall_seconds":
        return f"{value:.2f}s"
    if key.endswith("_seconds"):
        return shown_seconds(float(value))
    return f"{value:.1%}" if key.endswith("_fraction") else str(value)
