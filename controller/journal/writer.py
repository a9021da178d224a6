# SPDX-License-Identifier: GPL-2.0-or-later
"""The writing side of the journal.

Calls only queue rows; `commit()`, once per tick of the loop, writes them in one transaction. Two kinds of
call write through at once: those that begin or advance an operation (they must be on disk before the
controller acts, so that a controller killed in mid-switch finds out what it was doing) and those that read.

Durability: WAL with synchronous=NORMAL. What is committed survives the death of the process; the last
moments before a power failure may be lost, which does no harm, since Slurm and the nodes are asked anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import threading
import time as clock
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from controller.errors import JournalError
from controller.journal.records import JobRecord, JobTotals, OpenOperation, gpu_names
from controller.journal.schema import migrate
from controller.model import GpuSet, JobId

_log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Longest name, reason or message that is kept, in characters."""
MAX_QUEUED = 200_000
"""Rows kept in memory while the disk refuses them; beyond that the oldest decisions and events go first."""
PRUNE_ROWS = 4000
"""Old rows deleted at once per table at most, so that no tick is long."""
PRUNE_INTERVAL_SECONDS = 60.0
CHECKED_BYTES = 512 << 20
"""Files up to this size are checked for damage when they are opened (about a second)."""
BUSY_SECONDS = 2.0

# Upserts, not UPDATE FROM: Python on RHEL 8 comes with SQLite 3.26.
_ENSURE_USAGE = "INSERT INTO usage VALUES (?, 0, 0, 0, '') ON CONFLICT DO NOTHING"
_COUNT_SLICE = """
    INSERT INTO usage
        SELECT job_id, max(0, ? - start), max(0, ? - start) * gpu_count, 1, gpus
        FROM slices WHERE job_id = ? AND end IS NULL
    ON CONFLICT (job_id) DO UPDATE SET
        run_seconds = run_seconds + excluded.run_seconds,
        gpu_seconds = gpu_seconds + excluded.gpu_seconds,
        slices = slices + 1
"""
_CLOSE_SLICE = "UPDATE slices SET end = max(start, ?), reason = ? WHERE job_id = ? AND end IS NULL"
_OPEN_SLICE = "INSERT INTO slices (job_id, gpus, gpu_count, start) VALUES (?, ?, ?, ?)"
_PLACE = "UPDATE usage SET gpus = ? WHERE job_id = ?"
_DECISION = "INSERT INTO decisions (time, job_id, action, reason, gpus) VALUES (?, ?, ?, ?, ?)"
_EVENT = "INSERT INTO events (time, job_id, node, kind, message) VALUES (?, ?, ?, ?, ?)"
_STATE = "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
# A requeued job gets a new submit time from Slurm; the journal keeps the user's.
_JOB = """
    INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job_id) DO UPDATE SET
        user = excluded.user, account = excluded.account, partition = excluded.partition,
        name = excluded.name,
        gpus = excluded.gpus, weight = excluded.weight, submit = min(submit, excluded.submit),
        start = coalesce(min(start, excluded.start), start, excluded.start),
        end = excluded.end, state = excluded.state, request = excluded.request,
        moves = max(moves, excluded.moves), suspends = max(suspends, excluded.suspends),
        step_seconds = coalesce(excluded.step_seconds, step_seconds),
        exit_code = coalesce(excluded.exit_code, exit_code),
        peak_memory_bytes = coalesce(excluded.peak_memory_bytes, peak_memory_bytes)
"""
_BEGIN = "INSERT OR REPLACE INTO operations (op_id, job_id, kind, begin, detail) VALUES (?, ?, ?, ?, ?)"
_STEP = "UPDATE operations SET step = ?, step_time = ? WHERE op_id = ?"
_END = "UPDATE operations SET end = ?, outcome = ?, error = ? WHERE op_id = ? AND end IS NULL"
_PRUNE_DETAIL = (
    "DELETE FROM slices WHERE id IN (SELECT id FROM slices WHERE end < ? LIMIT ?)",
    "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions WHERE time < ? LIMIT ?)",
    "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
    "DELETE FROM operations WHERE op_id IN (SELECT op_id FROM operations WHERE end < ? LIMIT ?)",
)
_OLD_JOBS = "(SELECT job_id FROM jobs WHERE end < ? ORDER BY end, job_id LIMIT ?)"
_PRUNE_JOBS = (
    f"DELETE FROM usage WHERE job_id IN {_OLD_JOBS}",
    f"DELETE FROM jobs WHERE job_id IN {_OLD_JOBS}",
)


class Journal:
    """The one writer of a journal file. Raises JournalError from every method that touches the disk.

    Safe to call from several threads. `messages` holds what the opening found worth telling (also logged).
    Ended jobs are kept for `retention_days`, the details (slices, decisions, events) for `detail_days`.
    """

    def __init__(self, path: Path, *, retention_days: float = 90.0, detail_days: float = 14.0) -> None:
        self.path = path
        self.retention_days = retention_days
        self.detail_days = detail_days
        self.messages: list[str] = []
        self._lock = threading.RLock()
        self._queue: deque[tuple[str, tuple[object, ...]]] = deque()
        self._last_decision: dict[JobId, tuple[str, str, str]] = {}
        self._next_prune = 0.0
        self._last_operation: int | None = None
        self._lock_file = self._take_lock()
        try:
            self._connection = self._open_or_begin_anew()
        except BaseException:
            self._lock_file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what the loop records ---------------------------------------------------------------------

    def record_decision(self, time: float, job_id: JobId, action: str, reason: str, gpus: GpuSet) -> None:
        """A decision and why. The same decision twice in a row is recorded once."""
        decision = (action, _cut(reason), gpu_names(gpus))
        with self._lock:
            if self._last_decision.get(job_id) == decision:
                return
            self._last_decision[job_id] = decision
            self._add(_DECISION, (time, job_id, *decision))

    def record_event(
        self, time: float, job_id: JobId | None, node: str | None, kind: str, message: str
    ) -> None:
        """Something worth remembering that is not a decision."""
        self._add(_EVENT, (time, job_id, node, _cut(kind), _cut(message)))

    def open_slice(self, job_id: JobId, gpus: GpuSet, time: float) -> None:
        """The job is on these GPUs from now on. A slice that is still open ends here."""
        names = gpu_names(gpus)
        with self._lock:
            self.close_slice(job_id, time, "went on elsewhere")
            self._add(_ENSURE_USAGE, (job_id,))
            self._add(_OPEN_SLICE, (job_id, names, len(gpus), time))
            self._add(_PLACE, (names, job_id))

    def close_slice(self, job_id: JobId, time: float, reason: str) -> None:
        """The job is off its GPUs; its totals grow by the slice. Nothing happens where none is open."""
        with self._lock:
            self._add(_COUNT_SLICE, (time, time, job_id))
            self._add(_CLOSE_SLICE, (time, _cut(reason), job_id))

    def upsert_job(self, job: JobRecord) -> None:
        """A job is new or has changed."""
        with self._lock:
            if job.end_time is not None:
                self._last_decision.pop(job.id, None)
            self._add(_ENSURE_USAGE, (job.id,))
            self._add(
                _JOB,
                (
                    job.id,
                    _cut(job.user),
                    _cut(job.account),
                    _cut(job.partition),
                    _cut(job.name),
                    job.gpus,
                    job.weight,
                    job.submit_time,
                    job.start_time,
                    job.end_time,
                    _cut(job.state),
                    json.dumps(dict(job.request), default=str),
                    job.moves,
                    job.suspends,
                    job.step_seconds,
                    job.exit_code,
                    job.peak_memory_bytes,
                ),
            )

    def save_state(self, key: str, value: Any) -> None:
        """Keep a JSON-serialisable value under a name, instead of the one before. Raises TypeError."""
        self._add(_STATE, (key, json.dumps(value)))

    def heartbeat(self, time: float) -> None:
        """The controller was alive at this time. Call it once per tick."""
        with self._lock:
            self._add(_STATE, ("heartbeat", json.dumps(time)))
            if time >= self._next_prune:
                self._next_prune = time + PRUNE_INTERVAL_SECONDS
                self._prune(time)

    # -- the executor's write-ahead ----------------------------------------------------------------

    def new_operation_id(self) -> int:
        """A number no operation in this journal has."""
        with self._lock:
            if self._last_operation is None:
                (row,) = self._read("SELECT coalesce(max(op_id), 0) FROM operations")
                self._last_operation = int(row[0])
            self._last_operation += 1
            return self._last_operation

    def begin_operation(
        self, op_id: int, job_id: JobId, kind: str, time: float, detail: Mapping[str, Any]
    ) -> None:
        """On disk when this returns: the controller is about to do this."""
        self._write_through(_BEGIN, (op_id, job_id, kind, time, json.dumps(dict(detail), default=str)))

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        """On disk when this returns: this step of the operation is done."""
        self._write_through(_STEP, (step, time, op_id))

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        """The operation is over, well or not."""
        self._add(_END, (time, outcome, _cut(error), op_id))

    # -- what the loop reads at its start ----------------------------------------------------------

    def open_operations(self) -> list[OpenOperation]:
        """Operations that were begun and never ended, oldest first."""
        rows = self._read(
            "SELECT op_id, job_id, kind, begin, detail, step FROM operations WHERE end IS NULL ORDER BY begin"
        )
        return [
            OpenOperation(op_id, JobId(job_id), kind, begin, json.loads(detail), step)
            for op_id, job_id, kind, begin, detail, step in rows
        ]

    def load_state(self, key: str) -> Any:
        """The value saved under this name, or None."""
        rows = self._read("SELECT value FROM state WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def last_heartbeat(self) -> float | None:
        """When a controller was last known to be alive; None in a new journal."""
        value = self.load_state("heartbeat")
        return float(value) if value is not None else None

    def close_open_slices(self, time: float) -> list[JobId]:
        """At start: end the slices that a killed controller left open, with its last heartbeat as their end,
        so that nothing is counted that nobody saw. Returns the jobs concerned."""
        with self._lock:
            jobs = [JobId(row[0]) for row in self._read("SELECT job_id FROM slices WHERE end IS NULL")]
            for job_id in jobs:
                self.close_slice(job_id, time, "the controller stopped")
            self.commit()
            return jobs

    def totals(self) -> dict[JobId, JobTotals]:
        """Use of GPUs so far of all jobs that have not ended, closed slices only."""
        rows = self._read(
            "SELECT job_id, run_seconds, gpu_seconds, slices, coalesce(moves, 0), coalesce(suspends, 0) "
            "FROM usage LEFT JOIN jobs USING (job_id) WHERE end IS NULL"
        )
        return {JobId(job_id): JobTotals(*values) for job_id, *values in rows}

    def unfinished_jobs(self) -> list[JobId]:
        """Jobs whose end was never recorded."""
        return [JobId(row[0]) for row in self._read("SELECT job_id FROM jobs WHERE end IS NULL")]

    # -- the file ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what is queued, in one transaction. After a JournalError the rows stay queued: call again
        at the next tick."""
        with self._lock:
            if not self._queue:
                return
            try:
                self._transact()
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise self._failed("write", error) from error
                self._set_aside(error)
                try:
                    self._connection = self._connect()
                    self._transact()
                except sqlite3.Error as again:
                    raise self._failed("write", again) from again

    def close(self) -> None:
        """Write what is queued and let go of the file."""
        with self._lock:
            try:
                self.commit()
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._lock_file.close()

    def _transact(self) -> None:
        rows = list(self._queue)
        try:
            with self._transaction():
                for statement, group in groupby(rows, key=lambda row: row[0]):
                    self._connection.executemany(statement, [parameters for _, parameters in group])
        except _BAD_ROW as error:
            _log.error("journal %s: a row cannot be stored (%s); storing the others", self.path, error)
            self._store_singly(rows)
        self._queue.clear()

    def _store_singly(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        """A row that no disk will ever take must not hold up the others for ever."""
        with self._transaction():
            for statement, parameters in rows:
                try:
                    self._connection.execute(statement, parameters)
                except _BAD_ROW as error:
                    _log.error(
                        "journal %s: lost: %s %r: %s", self.path, statement.split()[:3], parameters, error
                    )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _add(self, statement: str, parameters: tuple[object, ...]) -> None:
        with self._lock:
            self._queue.append((statement, parameters))
            if len(self._queue) > MAX_QUEUED:
                self._shed()

    def _shed(self) -> None:
        """The disk has been refusing for long: let go of words and repeated values, keep the accounting."""
        before = len(self._queue)
        newest_state = {str(row[1][0]): index for index, row in enumerate(self._queue) if row[0] == _STATE}
        keep_from = before // 2
        self._queue = deque(
            row
            for index, row in enumerate(self._queue)
            if not (row[0] in (_DECISION, _EVENT) and index < keep_from)
            and not (row[0] == _STATE and newest_state[str(row[1][0])] != index)
        )
        _log.warning(
            "journal %s: dropped %d rows that could not be written", self.path, before - len(self._queue)
        )

    def _write_through(self, statement: str, parameters: tuple[object, ...]) -> None:
        with self._lock:
            self._add(statement, parameters)
            try:
                self.commit()
            except JournalError:
                # The caller will not act, so this must not appear later as begun.
                self._queue.pop()
                raise

    def _read(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        with self._lock:
            self.commit()
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._failed("read", error) from error

    def _prune(self, now: float) -> None:
        for statement in _PRUNE_DETAIL:
            self._add(statement, (now - self.detail_days * 86400, PRUNE_ROWS))
        for statement in _PRUNE_JOBS:
            self._add(statement, (now - self.retention_days * 86400, PRUNE_ROWS))

    def _take_lock(self) -> IO[str]:
        """Two controllers on one cluster would undo each other's work: the second is refused here."""
        lock_path = self.path.with_name(self.path.name + ".lock")
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JournalError(
                f"cannot open the journal {self.path}: {error.strerror}: its folder must exist and belong to "
                "the user of the controller (journal.path in the settings)"
            ) from error
        lock_file = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = lock_file.read(20).strip() or "unknown"
            lock_file.close()
            raise JournalError(
                f"another controller (pid {holder}) uses the journal {self.path}: stop it first"
            ) from error
        lock_file.truncate()
        lock_file.write(f"{os.getpid()}\n")
        lock_file.flush()
        return lock_file

    def _open_or_begin_anew(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise self._failed("open", error) from error
            self._set_aside(error)
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise self._failed("open", error) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
            if self.path.stat().st_size <= CHECKED_BYTES:
                answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if answer != "ok":
                    raise _Damaged(answer)
            migrate(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Move a damaged file out of the way. Raises JournalError where that fails too."""
        connection = getattr(self, "_connection", None)
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        suffix = f".damaged-{clock.strftime('%Y%m%dT%H%M%S')}"
        try:
            for part in ("", "-wal", "-shm"):
                file = self.path.with_name(self.path.name + part)
                if file.exists():
                    file.rename(self.path.with_name(self.path.name + suffix + part))
        except OSError as failure:
            raise JournalError(
                f"the journal {self.path} is damaged ({error}) and cannot be moved away: {failure.strerror}"
            ) from failure
        message = (
            f"the journal {self.path} is damaged ({error}): it was set aside as {self.path.name}{suffix} and "
            "a new one begun; use of GPUs before now is missing from reports"
        )
        self.messages.append(message)
        _log.error("%s", message)

    def _failed(self, what: str, error: sqlite3.Error) -> JournalError:
        code = getattr(error, "sqlite_errorname", "")  # Python 3.11
        hint = ""
        if "FULL" in code or "full" in str(error):
            hint = ": free space on its file system"
        elif "locked" in str(error):
            hint = ": another process holds it; look with `fuser`"
        elif "readonly" in str(error) or "unable to open" in str(error):
            hint = ": it must be writable by the user of the controller"
        return JournalError(f"cannot {what} the journal {self.path}: {error}{hint}")


_BAD_ROW = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
)


class _Damaged(sqlite3.DatabaseError):
    """The integrity check found something."""


def _is_damage(error: sqlite3.Error) -> bool:
    return isinstance(error, _Damaged) or "not a database" in str(error) or "malformed" in str(error)


def _cut(text: str) -> str:
    """Bounded, and without what SQLite cannot store (lone surrogates, from odd file names)."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8").replace("\0", "�")
