# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.api.messages import GpusMessage, JobMessage, JobsMessage
from controller.reports.table import Column

COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("Search", 11, lambda r: r["search"], left=True),
    Column("JobID", 8, lambda r: str(r["job_id"]), left=True),
    Column("User", 7, lambda r: r["user"]),
    Column("State", 9, lambda r: r["state"]),
    Column("GPUSeconds", 10, lambda r: f"{r['gpu_seconds']:.0f}"),
    Column("Steps", 7, lambda r: "" if r["steps"] is None else str(r["steps"])),
    Column("Rate", 8, lambda r: "" if r["steps_per_second"] is None else f"{r['steps_per_second']:.3g}/s"),
    Column("Priority", 8, lambda r: f"{r['priority']:g}"),
    Column("Excl", 4, lambda r: "yes" if r["exclusive"] else ""),
)
STUDY_COLUMNS = (COLUMNS[1], Column("Name", 18, lambda r: r["name"], left=True), *COLUMNS[3:])
"""Of the trials of a study, which have one user and are one search."""
_OF_JOB = ("job_id", "user", "name", "state", "gpus", "gpu_seconds")


def trial_rows(jobs: JobsMessage, now: GpusMessage | None, searches: Sequence[str]) -> list[dict[str, Any]]:
    """Of these searches (none given: of all), by user and search, the highest priority first. `now`: None
    where nobody can be asked."""
    steps = {job.job_id: job.steps_done for job in now.jobs} if now is not None else {}
    rows = [_row(job, steps) for job in jobs.jobs if isinstance(job.request.get("search"), str)]
    chosen = [row for row in rows if not searches or row["search"] in searches]
    return sorted(
        chosen, key=lambda r: (r["user"], r["search"], not r["exclusive"], -r["priority"], r["job_id"])
    )


def _row(job: JobMessage, steps: Mapping[int, int]) -> dict[str, Any]:
    """A job of a search, as JSON has it. Steps are None where the controller does not know them any more,
    their rate before it was measured."""
    priority = job.request.get("priority")
    return {
        "search": job.request["search"],
        **{name: getattr(job, name) for name in _OF_JOB},
        "steps": steps.get(job.job_id),
        "steps_per_second": 1.0 / job.step_seconds if job.step_seconds else None,
        "priority": float(priority) if isinstance(priority, int | float) else 1.0,
        "exclusive": job.request.get("exclusive") is True,
    }
