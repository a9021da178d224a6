# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.api.messages import GpusMessage, JobMessage, JobsMessage
from controller.model import value
from controller.reports.table import Column


@value
class TrialRow:
    """A job of a search, in the order of its JSON."""

    search: str
    job_id: int
    user: str
    name: str
    state: str
    gpus: int
    gpu_seconds: float
    steps: int | None
    """Mini-batches so far; None where the controller does not know them any more."""
    steps_per_second: float | None
    """While it is on its GPUs; None before it was measured."""
    priority: float
    exclusive: bool


COLUMNS: tuple[Column[TrialRow], ...] = (
    Column("Search", 11, lambda r: r.search, left=True),
    Column("JobID", 8, lambda r: str(r.job_id), left=True),
    Column("User", 7, lambda r: r.user),
    Column("State", 9, lambda r: r.state),
    Column("GPUSeconds", 10, lambda r: f"{r.gpu_seconds:.0f}"),
    Column("Steps", 7, lambda r: "" if r.steps is None else str(r.steps)),
    Column("Rate", 8, lambda r: "" if r.steps_per_second is None else f"{r.steps_per_second:.3g}/s"),
    Column("Priority", 8, lambda r: f"{r.priority:g}"),
    Column("Excl", 4, lambda r: "yes" if r.exclusive else ""),
)


def trial_rows(jobs: JobsMessage, now: GpusMessage, searches: Sequence[str]) -> list[TrialRow]:
    """Of these searches (none given: of all), by user and search, the highest priority first."""
    steps = {job.job_id: job.steps_done for job in now.jobs}
    rows = [_row(job, steps) for job in jobs.jobs if isinstance(job.request.get("search"), str)]
    chosen = [row for row in rows if not searches or row.search in searches]
    return sorted(chosen, key=lambda r: (r.user, r.search, not r.exclusive, -r.priority, r.job_id))


def _row(job: JobMessage, steps: Mapping[int, int]) -> TrialRow:
    priority = job.request.get("priority")
    return TrialRow(
        search=str(job.request["search"]),
        job_id=job.job_id,
        user=job.user,
        name=job.name,
        state=job.state,
        gpus=job.gpus,
        gpu_seconds=job.gpu_seconds,
        steps=steps.get(job.job_id),
        steps_per_second=1.0 / job.step_seconds if job.step_seconds else None,
        priority=float(priority) if isinstance(priority, int | float) else 1.0,
        exclusive=job.request.get("exclusive") is True,
    )
