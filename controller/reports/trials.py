# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of searches as text, in the way of sacct, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controller.api.messages import GpusMessage, JobMessage, JobsMessage
from controller.model import value
from controller.reports import units
from controller.reports.text import columned

_COLUMNS = (
    ("Search", -11),
    ("JobID", -8),
    ("User", 7),
    ("State", 9),
    ("GPUSeconds", 10),
    ("Steps", 7),
    ("Rate", 8),
    ("Priority", 8),
    ("Excl", 4),
)
"""Names and widths; negative: to the left."""


@value
class TrialRow:
    """A job of a search."""

    job: JobMessage
    search: str
    priority: float
    exclusive: bool
    steps: int | None
    """Mini-batches so far; None where the controller does not know them any more."""

    @property
    def steps_per_second(self) -> float | None:
        """While it is on its GPUs; None before it was measured."""
        return 1.0 / self.job.step_seconds if self.job.step_seconds else None


def trial_rows(jobs: JobsMessage, now: GpusMessage, searches: Sequence[str]) -> list[TrialRow]:
    """Of these searches (none given: of all), by user and search, the highest priority first."""
    steps = {job.job_id: job.steps_done for job in now.jobs}
    rows = [_row(job, steps) for job in jobs.jobs if isinstance(job.request.get("search"), str)]
    chosen = [row for row in rows if not searches or row.search in searches]
    return sorted(chosen, key=lambda r: (r.job.user, r.search, not r.exclusive, -r.priority, r.job.job_id))


def _row(job: JobMessage, steps: Mapping[int, int]) -> TrialRow:
    priority, exclusive = job.request.get("priority"), job.request.get("exclusive")
    number = float(priority) if isinstance(priority, int | float) else 1.0
    return TrialRow(job, str(job.request["search"]), number, exclusive is True, steps.get(job.job_id))


def trial_lines(rows: Iterable[TrialRow], *, header: bool, delimiter: str | None) -> Iterator[str]:
    """`delimiter`: None for fixed width."""
    return columned(_COLUMNS, map(_cells, rows), header=header, delimiter=delimiter)


def _cells(row: TrialRow) -> list[str]:
    rate = row.steps_per_second
    return [
        row.search,
        str(row.job.job_id),
        row.job.user,
        row.job.state,
        f"{row.job.gpu_seconds:.0f}",
        "" if row.steps is None else str(row.steps),
        "" if rate is None else f"{rate:.3g}/s",
        units.number(row.priority),
        "yes" if row.exclusive else "",
    ]


def trial_json(row: TrialRow) -> dict[str, Any]:
    """One trial."""
    return {
        "search": row.search,
        "job_id": row.job.job_id,
        "user": row.job.user,
        "name": row.job.name,
        "state": row.job.state,
        "gpus": row.job.gpus,
        "gpu_seconds": row.job.gpu_seconds,
        "steps": row.steps,
        "steps_per_second": row.steps_per_second,
        "priority": row.priority,
        "exclusive": row.exclusive,
    }
