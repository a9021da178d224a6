# SPDX-License-Identifier: GPL-2.0-or-later
"""The reading side of the journal, for reports and the HTTP API. Never writes, never blocks the writer."""

import json
import logging
import sqlite3
import stat
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from controller.errors import JournalError
from controller.journal.damage import forgiving
from controller.journal.records import (
    DECISIONS,
    EVENTS,
    RECORD_FIELDS,
    SLICES,
    Decision,
    Event,
    JobRecord,
    JobRow,
    Slice,
    decision_of,
    gpu_set,
    slice_of,
)
from controller.journal.schema import MIGRATIONS, version_of
from controller.model import JobId

_log = logging.getLogger(__name__)

Row = TypeVar("Row")

_OF_JOB = "FROM events WHERE events.job_id = jobs.job_id AND time >= submit"
"""Events of a job, not of an earlier one with its number."""

MAX_JOBS = 10_000
MAX_SLICES = 200_000
_BUSY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a report is about; an empty tuple or None means no restriction."""

    job_ids: tuple[int, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """Slurm's names, such as COMPLETED."""
    start: float | None = None
    """Jobs that had not ended before this time."""
    end: float | None = None
    """Jobs that were submitted by this time."""
    limit: int = MAX_JOBS


class JournalReader:
    """Opens the file for each question (a fifth of a millisecond), so that threads need no care.

    Raises JournalError where there is no journal, or it does not answer within `deadline_seconds`.
    """

    def __init__(self, path: Path, *, deadline_seconds: float = 5.0, still: bool = False) -> None:
        """`still`: as of `open_read_only`."""
        self.path, self.still = path, still
        self.deadline_seconds = deadline_seconds

    def jobs(self, which: JobFilter | None = None, *, now: float | None = None) -> list[JobRow]:
        """Jobs in the order of their ids, with their use of GPUs up to `now` (default: this moment)."""
        which = which or JobFilter()
        moment = clock.time() if now is None else now
        clauses = _where(which)
        statement = f"""
            SELECT coalesce(run_seconds, 0), coalesce(gpu_seconds, 0), coalesce(usage.slices, 0),
                coalesce(usage.gpus, ''), slices.start, coalesce(slices.gpu_count, 0),
                coalesce((SELECT reason FROM decisions WHERE decisions.job_id = jobs.job_id
                    ORDER BY id DESC LIMIT 1), ''),
                (SELECT coalesce(min(gpu_count), 0) FROM slices AS s WHERE s.job_id = jobs.job_id),
                (SELECT coalesce(max(gpu_count), 0) FROM slices AS s WHERE s.job_id = jobs.job_id),
                (SELECT count(*) {_OF_JOB} AND kind IN ('pack-tried', 'pack-planned')),
                (SELECT count(*) {_OF_JOB} AND kind LIKE '%-tried'),
                (SELECT gain {_OF_JOB} AND gain IS NOT NULL ORDER BY id DESC LIMIT 1), jobs.*
            FROM jobs
            LEFT JOIN usage USING (job_id)
            LEFT JOIN slices ON slices.job_id = jobs.job_id AND slices.end IS NULL
            {"WHERE " + " AND ".join(clauses) if clauses else ""}
            ORDER BY jobs.job_id DESC LIMIT ?
        """
        # The newest count where there are too many; people read from the oldest on.
        rows = self._last(statement, *clauses.values(), max(0, min(which.limit, MAX_JOBS)))
        return self._made(lambda row: _job_row(row, moment), rows)

    def decisions(self, job_id: JobId, limit: int = 100) -> list[Decision]:
        """The last decisions about a job, oldest first."""
        rows = self._last(f"{DECISIONS} WHERE job_id = ? ORDER BY id DESC LIMIT ?", job_id, limit)
        return self._made(decision_of, rows)

    def events(self, job_id: JobId | None = None, limit: int = 100) -> list[Event]:
        """The last events (of one job), oldest first."""
        of_job, values = ("", ()) if job_id is None else ("WHERE job_id = ?", (job_id,))
        rows = self._last(f"{EVENTS} {of_job} ORDER BY id DESC LIMIT ?", *values, limit)
        return [Event(*row) for row in rows]

    def slices(self, job_id: JobId, limit: int = 100) -> list[Slice]:
        """The last times on GPUs of a job, oldest first."""
        return self._slices("job_id = ?", job_id, limit)

    def timeline(self, start: float, end: float, limit: int = MAX_SLICES) -> list[Slice]:
        """Slices that touch a span of time, oldest first; the newest where there are more than `limit`."""
        limit = max(0, min(limit, MAX_SLICES))
        return self._slices("start <= ? AND (end IS NULL OR end >= ?)", end, start, limit)

    def _slices(self, which: str, *values: object) -> list[Slice]:
        rows = self._last(f"{SLICES} WHERE {which} ORDER BY start DESC, id DESC LIMIT ?", *values)
        return self._made(slice_of, rows)

    def state(self, key: str) -> Any:
        """What the controller keeps under this name, as JSON; None: nothing."""
        with self._connection() as connection:
            row = connection.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])

    def _made(self, make: Callable[[Any], Row], rows: Iterable[Any]) -> list[Row]:
        """What the rows say. One that was damaged must not hide the others."""
        made, damaged = [], 0
        for row in rows:
            try:
                made.append(make(row))
            except (TypeError, ValueError, AttributeError, RecursionError):
                damaged += 1
        if damaged:
            _log.warning(
                "journal %s: %d damaged rows are left out; see gandiva journal verify", self.path, damaged
            )
        return made

    def _last(self, statement: str, *values: object) -> list[Any]:
        with self._connection() as connection:
            return connection.execute(statement, values).fetchall()[::-1]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        require_journal(self.path)
        try:
            with closing(
                open_read_only(self.path, busy_seconds=_BUSY_SECONDS, still=self.still)
            ) as connection:
                deadline = clock.monotonic() + self.deadline_seconds
                connection.set_progress_handler(lambda: clock.monotonic() > deadline, 10_000)
                if 0 < (found := version_of(connection)) < len(MIGRATIONS):
                    words = f"has schema {found}, and this program reads {len(MIGRATIONS)}"
                    raise JournalError(f"the journal {self.path} {words}: start the new controller first")
                yield connection
        except sqlite3.Error as error:
            if "interrupted" in str(error):
                raise JournalError(
                    f"the journal {self.path} did not answer within {self.deadline_seconds:g} s: "
                    "ask for fewer jobs"
                ) from error
            raise JournalError(f"cannot read the journal {self.path}: {error}") from error
        except ValueError as error:
            raise JournalError(f"the journal {self.path} holds what makes no sense: {error}") from error


def require_journal(path: Path) -> int:
    """The size in bytes of the journal there.

    Raises JournalError: there is none, or its folder may not be looked into. `Path.exists` would say False in
    that case, or raise, depending on Python's version.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise JournalError(f"there is no journal {path}: has the controller ever run?") from None
    except OSError as error:
        raise JournalError(
            f"cannot look at the journal {path}: {error.strerror}: it is for root and the user of the"
            " controller; others ask the controller itself: gandiva report, gandiva explain"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise JournalError(f"{path} is no file, so no journal")
    return status.st_size


def open_read_only(path: Path, *, busy_seconds: float, still: bool = False) -> sqlite3.Connection:
    """A connection that never writes. `still`: nobody writes the file, only to put another in its place; no
    lock is needed, nor a file beside it. Raises sqlite3.Error."""
    options = "mode=ro&immutable=1" if still else "mode=ro"
    connection = sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?{options}", uri=True, timeout=busy_seconds, isolation_level=None
    )
    connection.text_factory = forgiving
    return connection


def _where(which: JobFilter) -> dict[str, object]:
    """Clauses, each with its parameter."""
    choices: dict[str, Sequence[object]] = {
        "jobs.job_id": which.job_ids,
        "user": which.users,
        "account": which.accounts,
        "partition": which.partitions,
        "state": which.states,
    }
    times = {"(jobs.end IS NULL OR jobs.end >= ?)": which.start, "submit <= ?": which.end}
    # One JSON parameter, because SQLite bounds the number of parameters.
    named = {
        f"{column} IN (SELECT value FROM json_each(?))": json.dumps(list(allowed))
        for column, allowed in choices.items()
        if allowed
    }
    return {**named, **{clause: time for clause, time in times.items() if time is not None}}


_COUNTED = 12
"""Columns of a job's row that are counted from other tables; those of its own follow."""


def _job_row(row: Sequence[Any], now: float) -> JobRow:
    run_seconds, gpu_seconds, slices, places, since, gpus, *others = row[:_COUNTED]
    known = dict(zip(RECORD_FIELDS, row[_COUNTED:], strict=False))  # a later release may have more columns
    record = JobRecord(**{**known, "request": json.loads(known["request"])})
    on_gpus, running = since is not None, 0.0 if since is None else max(0.0, now - since)
    used = run_seconds + running, gpu_seconds + running * gpus, slices + on_gpus
    return JobRow(record, *used, gpu_set(places), on_gpus, *others)
