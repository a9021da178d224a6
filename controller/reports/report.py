# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report`: jobs from the API or the journal, joined with accounting, and as JSON."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.api.messages import ExplainMessage, JobMessage, JobsMessage, TimelineMessage
from controller.journal import JobFilter, JournalReader
from controller.model import JobId
from controller.reports.advice import SLURM, Words, cannot_be_suspended
from controller.reports.row import Row
from controller.reports.sacct import Accounting, ask_sacct, is_final, last_ends
from controller.reports.text import clean, gpu_list

MAX_WARNINGS = 20
_TASK = re.compile(r"([0-9]{1,10})_(?:([0-9]{1,10})|\[.*)", re.ASCII)


class JournalSource:
    """Reads the journal file, on the controller's host as its user or root; the controller need not run."""

    def __init__(self, path: Path, now: float, *, still: bool = False) -> None:
        """`now`: the time as of which it speaks. `still`: as of `open_read_only`."""
        self.path, self._now = path, now
        self._reader = JournalReader(path, deadline_seconds=60, still=still)

    def jobs(self, which: JobFilter) -> JobsMessage:
        rows = self._reader.jobs(which, now=self._now)
        return JobsMessage(
            time=self._now, jobs=[JobMessage.of_row(row) for row in rows], truncated=len(rows) == which.limit
        )

    def timeline(self, start: float, end: float, limit: int) -> TimelineMessage:
        return TimelineMessage.of_slices(self._reader.timeline(start, end, limit), self._now, limit)

    def explain(self, job_id: int) -> ExplainMessage | None:
        """Without what only the controller knows, such as where it has the job now. None: no such job."""
        reader, number = self._reader, JobId(job_id)
        if not (found := self.jobs(JobFilter(job_ids=(job_id,))).jobs):
            return None
        pieces = {"slices": reader.slices(number), "events": reader.events(number)}
        return ExplainMessage.of(time=self._now, job=found[0], decisions=reader.decisions(number), **pieces)

    def gpus(self) -> None:
        """None: the journal has only GPUs that jobs have used."""


def account(jobs: Sequence[JobMessage]) -> Mapping[int, Accounting]:
    """What sacct says of these jobs. Raises CommandFailed."""
    found = dict(ask_sacct([job.job_id for job in jobs]))
    for job in jobs:
        known = found.get(job.job_id)
        # A slurmctld that is killed gives the numbers of its last seconds out again: this is a later job.
        if known and known.submit_time and job.end_time and known.submit_time > job.end_time:
            del found[job.job_id]
    # Of these the controller did not see the end.
    unseen = [job.job_id for job in jobs if Row(job, 0.0, found.get(job.job_id)).end_is_slurms]
    for job_id, end in last_ends(unseen).items() if unseen else ():
        known = found[job_id]
        found[job_id] = replace(known, end_time=max(end, known.end_time or end))
    return found


def join(jobs: JobsMessage, accounting: Mapping[int, Accounting]) -> list[Row]:
    """Each job with its accounting; the tasks of an array together, by their indices."""
    rows = [Row(job, jobs.time, accounting.get(job.job_id)) for job in jobs.jobs]
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[int, int, int]:
    """Array, task, job id: the ids of tasks are in no order, and the last one has that of the array."""
    raw = row.job.job_id
    # `12_3`; also `12_[4-9]`, tasks that are still one record: after those that have started.
    match = _TASK.fullmatch(row.job_id)
    if match is None:
        return raw, -1, raw
    return int(match[1]), int(match[2]) if match[2] else 1 << 32, raw


def as_json(rows: Sequence[Row], *, truncated: bool) -> Iterator[str]:
    """Lines of one JSON object. Times are seconds since the epoch, durations seconds, unrounded."""
    head = {"time": rows[0].now if rows else None, "truncated": truncated}
    yield json.dumps(head)[:-1] + ', "jobs": ['
    for index, row in enumerate(rows):
        # ASCII: JSON would let C1 control characters pass, which act on terminals.
        yield json.dumps(_values(row)) + ("," if index < len(rows) - 1 else "")
    yield "]}"


def _values(row: Row) -> dict[str, Any]:
    return {
        **row.job.model_dump(mode="json"),
        "state": row.state,
        "end_time": row.end_time,
        "array_job_id": row.job_id if row.job_id != str(row.job.job_id) else None,
        "exit_status": row.exit_code or None if is_final(row.state) else None,
        "elapsed_seconds": row.elapsed,
        "suspended_seconds": row.suspended,
        "wait_seconds": row.waited,
        "share_fraction": row.share_fraction,
    }


def unsuspendable(rows: Sequence[Row], words: Words = SLURM) -> Iterator[str]:
    """Warnings of jobs that keep their GPUs because they cannot be suspended."""
    kept = [(row, row.job.failed_suspends) for row in rows if row.job.failed_suspends is not None]
    for row, failed in kept[:MAX_WARNINGS]:
        explain = f"gandiva explain{words.options} {row.job_id}"
        yield clean(
            f"warning: {words.noun} {row.job_id} ({row.job.user}) on {gpu_list(row.job.last_gpus)} "
            f"{cannot_be_suspended(failed)}; {explain} says what its user can do"
        )
    if len(kept) > MAX_WARNINGS:
        yield f"warning: and {len(kept) - MAX_WARNINGS} more that cannot be suspended"
