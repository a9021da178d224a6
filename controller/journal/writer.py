# SPDX-License-Identifier: GPL-2.0-or-later
"""The writing side of the journal.

Calls only queue rows; `commit()`, once per tick of the loop, writes them in one transaction. Two kinds of
call write through at once: those that begin or advance an operation (they must be on disk before the
controller acts, so that a controller killed in mid-switch finds out what it was doing) and those that read.

Durability: WAL with synchronous=NORMAL. What is committed survives the death of the process; the last
moments before a power failure may be lost, which does no harm, since Slurm and the nodes are asked anyway.

Nothing that is done to jobs depends on the journal, so nothing that happens to it may keep them from their
GPUs (docs/journal.md): while its disk is full rows are kept in memory, and a file that is damaged or gone is
replaced by a new one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time as clock
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.errors import JournalError
from controller.journal.damage import Damaged, forgiving, garbled, is_damage, is_no_room, set_aside
from controller.journal.lock import JournalLock
from controller.journal.records import JobRecord, JobTotals, OpenOperation, gpu_names, gpu_set
from controller.journal.schema import migrate
from controller.model import GpuSet, JobId

_log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Longest name, reason or message that is kept, in characters."""
MAX_QUEUED = 200_000
"""Rows kept in memory while the disk refuses them; beyond that the oldest decisions, events and operations
go first, and beyond twice as many the oldest of everything."""
PRUNE_ROWS = 4000
"""Old rows deleted at once per table at most, so that no tick is long."""
PRUNE_INTERVAL_SECONDS = 60.0
CHECK_SECONDS = 3.0
"""Longest check for damage when the file is opened."""
ROWS_AT_ONCE = 5000
"""Most rows of one transaction: what piled up while the disk was full is written in parts."""
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
    INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job_id) DO UPDATE SET
        user = excluded.user, account = excluded.account, partition = excluded.partition,
        name = excluded.name,
        gpus = excluded.gpus, weight = excluded.weight, submit = min(submit, excluded.submit),
        start = coalesce(min(start, excluded.start), start, excluded.start),
        end = excluded.end, state = excluded.state, request = excluded.request,
        moves = max(moves, excluded.moves), suspends = max(suspends, excluded.suspends),
        step_seconds = coalesce(excluded.step_seconds, step_seconds),
        exit_code = coalesce(excluded.exit_code, exit_code),
        peak_memory_bytes = coalesce(excluded.peak_memory_bytes, peak_memory_bytes),
        utilization_fraction = coalesce(excluded.utilization_fraction, utilization_fraction)
"""
_GONE = "UPDATE jobs SET end = ?, state = 'UNKNOWN' WHERE job_id = ? AND end IS NULL"
_BEGIN = "INSERT OR REPLACE INTO operations (op_id, job_id, kind, begin, detail) VALUES (?, ?, ?, ?, ?)"
_STEP = "UPDATE operations SET step = ?, step_time = ? WHERE op_id = ?"
_END = "UPDATE operations SET end = ?, outcome = ?, error = ? WHERE op_id = ? AND end IS NULL"
_WORDS = frozenset({_DECISION, _EVENT, _BEGIN, _STEP, _END})
PRUNE_DETAIL = (
    "DELETE FROM slices WHERE id IN (SELECT id FROM slices WHERE end < ? LIMIT ?)",
    "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions WHERE time < ? LIMIT ?)",
    "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
    "DELETE FROM operations WHERE op_id IN (SELECT op_id FROM operations WHERE end < ? LIMIT ?)",
)
_OLD_JOBS = "(SELECT job_id FROM jobs WHERE end < ? ORDER BY end, job_id LIMIT ?)"
PRUNE_JOBS = (
    f"DELETE FROM usage WHERE job_id IN {_OLD_JOBS}",
    f"DELETE FROM jobs WHERE job_id IN {_OLD_JOBS}",
)


class Journal:
    """The one writer of a journal file. Raises JournalError from every method that touches the disk.

    Safe to call from several threads. `messages` holds what became of the file and is worth telling (also
    logged); `generation` grows when a new file takes the place of one that was damaged or gone.
    Ended jobs are kept for `retention_days`, the details (slices, decisions, events) for `detail_days`.
    `lock`: taken already; given back by `close`. Without it another process that writes is an error.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_days: float = 90.0,
        detail_days: float = 14.0,
        lock: JournalLock | None = None,
    ) -> None:
        self.path = path
        self.retention_days = retention_days
        self.detail_days = detail_days
        self.messages: list[str] = []
        self.generation = 0
        self._lock = threading.RLock()
        self._queue: deque[tuple[str, tuple[object, ...]]] = deque()
        self._last_decision: dict[JobId, tuple[str, str, str]] = {}
        self._next_prune = 0.0
        self._last_operation: int | None = None
        self._makeshift = ""
        """How the journal is read while there is no room to open it properly; empty: it is open."""
        self._file: os.stat_result | None = None
        self._writable = True
        self._shed_at = MAX_QUEUED
        self._leading = lock or _taken(path)
        try:
            self._connection = self._open()
        except BaseException:
            self._leading.release()
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

    def carry_over(self, job_id: JobId, run_seconds: float, gpu_seconds: float) -> None:
        """Into a new file: what a living job has used so far. (It counts as a slice of which no details are
        known.)"""
        self._add(
            "INSERT INTO usage VALUES (?, ?, ?, 1, '') ON CONFLICT DO NOTHING",
            (job_id, run_seconds, gpu_seconds),
        )

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
                    job.utilization_fraction,
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
                # What cannot be read now may have any number up to some millions.
                self._last_operation = int(clock.time() * 1000 if self._makeshift == "memory" else row[0])
            self._last_operation += 1
            return self._last_operation

    def begin_operation(
        self, op_id: int, job_id: JobId, kind: str, time: float, gpus: GpuSet, reason: str
    ) -> None:
        """On disk when this returns (unless the disk takes nothing): the controller is about to do this."""
        detail = json.dumps({"gpus": [str(gpu) for gpu in sorted(gpus)], "reason": _cut(reason)})
        self._write_through(_BEGIN, (op_id, job_id, kind, time, detail))

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        """On disk when this returns (unless the disk takes nothing): this step is about to be taken."""
        self._write_through(_STEP, (step, time, op_id))

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        """The operation is over, well or not."""
        self._add(_END, (time, outcome, _cut(error), op_id))

    # -- what the loop reads at its start ----------------------------------------------------------

    def open_operations(self) -> list[OpenOperation]:
        """Operations that were begun and never ended, oldest first."""
        rows = self._read(
            "SELECT op_id, job_id, kind, begin, step, step_time FROM operations WHERE end IS NULL "
            "ORDER BY begin"
        )
        return [
            OpenOperation(op_id, JobId(job_id), kind, begin, step, at)
            for op_id, job_id, kind, begin, step, at in rows
        ]

    def load_state(self, key: str) -> Any:
        """The value saved under this name, or None."""
        rows = self._read("SELECT value FROM state WHERE key = ?", (key,))
        return self._json(rows[0][0], f"state {key}") if rows else None

    def last_heartbeat(self) -> float | None:
        """When a controller was last known to be alive; None in a new journal."""
        value = self.load_state("heartbeat")
        return float(value) if isinstance(value, int | float) else None

    def open_places(self) -> dict[JobId, GpuSet]:
        """The GPUs of all jobs that are on some, as far as is recorded."""
        places: dict[JobId, GpuSet] = {}
        for job_id, gpus in self._read("SELECT job_id, gpus FROM slices WHERE end IS NULL"):
            try:
                places[JobId(job_id)] = gpu_set(gpus)
            except (ValueError, AttributeError):
                _log.error("journal %s: job %s: no GPUs: %.80r; going on without it", self.path, job_id, gpus)
        return places

    def close_open_slices(self, time: float) -> list[JobId]:
        """At start: end the slices that a killed controller left open, with its last heartbeat as their end,
        so that nothing is counted that nobody saw. Returns the jobs concerned."""
        with self._lock:
            jobs = [JobId(row[0]) for row in self._read("SELECT job_id FROM slices WHERE end IS NULL")]
            for job_id in jobs:
                self.close_slice(job_id, time, "the controller stopped")
            self._flush()
            return jobs

    def totals(self) -> dict[JobId, JobTotals]:
        """Use of GPUs so far of all jobs that have not ended, closed slices only."""
        rows = self._read(
            "SELECT job_id, run_seconds, gpu_seconds, slices, coalesce(moves, 0), coalesce(suspends, 0), "
            "utilization_fraction FROM usage LEFT JOIN jobs USING (job_id) WHERE end IS NULL"
        )
        return {
            JobId(job_id): JobTotals(
                run_seconds=run,
                gpu_seconds=gpu,
                slices=slices,
                moves=moves,
                suspends=suspends,
                utilization_fraction=u,
            )
            for job_id, run, gpu, slices, moves, suspends, u in rows
        }

    def suspended(self) -> list[JobId]:
        """Jobs that were suspended in Slurm when they were last seen."""
        return [JobId(row[0]) for row in self._read("SELECT job_id FROM jobs WHERE state = 'SUSPENDED'")]

    def submissions(self, job_ids: Iterable[JobId]) -> dict[JobId, tuple[str, float]]:
        """User and submit time of those of these jobs that are recorded."""
        rows = self._read(
            "SELECT job_id, user, submit FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(job_ids)),),
        )
        return {JobId(job_id): (user, submit) for job_id, user, submit in rows}

    def begin_again(self, job_id: JobId) -> None:
        """The next record of this number is of another job: Slurm gave the number out again. What is recorded
        of the earlier job is dropped, as `sacct` shows the newest job of a number alone."""
        with self._lock:
            self._last_decision.pop(job_id, None)
            for table in ("usage", "jobs", "decisions", "slices"):
                self._add(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))

    def end_gone(self, present: Container[JobId], time: float) -> list[JobId]:
        """At start: jobs whose end was never recorded and that Slurm does not know any more have ended,
        nobody saw when. Returns them."""
        with self._lock:
            living = [JobId(row[0]) for row in self._read("SELECT job_id FROM jobs WHERE end IS NULL")]
            gone = [job_id for job_id in living if job_id not in present]
            for job_id in gone:
                self._add(_GONE, (time, job_id))
            return gone

    # -- the file ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what is queued. After a JournalError the rows stay queued: call again at the next tick."""
        with self._lock:
            self._writable = False
            try:
                with garbled():
                    self._write_queue()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise self._failed("write", error) from error
                self._replace(error)
                try:
                    self._write_queue()
                except sqlite3.Error as again:
                    raise self._failed("write", again) from again
            self._writable = True
            self._shed_at = MAX_QUEUED

    def close(self) -> None:
        """Write what is queued and let go of the file. What cannot be written is lost; the log says so."""
        with self._lock:
            try:
                self.commit()
            except JournalError as error:
                _log.error("%s; %d rows are lost", error, len(self._queue))
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._leading.release()

    def _write_queue(self) -> None:
        if self._makeshift:
            self._open_properly()
        elif not self._is_there():
            self._begin_anew(
                f"the journal {self.path} was removed: a new one was begun; jobs go on, but what they used "
                "before now is missing from reports"
            )
        while self._queue:
            rows = list(islice(self._queue, ROWS_AT_ONCE))
            try:
                with self._transaction():
                    for statement, group in groupby(rows, key=lambda row: row[0]):
                        self._connection.executemany(statement, [parameters for _, parameters in group])
            except _BAD_ROW as error:
                _log.error("journal %s: a row cannot be stored (%s); storing the others", self.path, error)
                self._store_singly(rows)
            for _ in rows:
                self._queue.popleft()
            _log.debug("journal %s: %d rows written", self.path, len(rows))

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
            if len(self._queue) > self._shed_at:
                self._shed()

    def _shed(self) -> None:
        """The disk has been refusing for long: let go of words and repeated values, keep the accounting."""
        before = len(self._queue)
        newest_state = {str(row[1][0]): index for index, row in enumerate(self._queue) if row[0] == _STATE}
        newest_job = {row[1][0]: index for index, row in enumerate(self._queue) if row[0] == _JOB}
        keep_from = before // 2
        self._queue = deque(
            row
            for index, row in enumerate(self._queue)
            if not (row[0] in _WORDS and index < keep_from)
            and not (row[0] == _STATE and newest_state[str(row[1][0])] != index)
            and not (row[0] == _JOB and newest_job[row[1][0]] != index)
        )
        while len(self._queue) > 2 * MAX_QUEUED:
            self._queue.popleft()
        # Not again for every row.
        self._shed_at = max(MAX_QUEUED, len(self._queue) + MAX_QUEUED // 4)
        _log.warning(
            "journal %s: dropped %d rows that could not be written", self.path, before - len(self._queue)
        )

    def _write_through(self, statement: str, parameters: tuple[object, ...]) -> None:
        with self._lock:
            self._add(statement, parameters)
            self._flush()

    def _flush(self) -> None:
        """Commit where that works. Where it does not, the loop hears of it once per tick; what it has begun
        it must be able to finish."""
        if self._writable:
            with contextlib.suppress(JournalError):
                self.commit()

    def _read(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        with self._lock:
            self._flush()
            try:
                with garbled():
                    return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise self._failed("read", error) from error
                self._replace(error)
                return self._connection.execute(statement, parameters).fetchall()

    def _json(self, text: str, what: str) -> Any:
        """What is no JSON any more counts as not there: a controller that does not start helps nobody."""
        try:
            return json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            _log.error("journal %s: %s: %s; going on without it", self.path, what, error)
            return None

    def _prune(self, now: float) -> None:
        for statement in PRUNE_DETAIL:
            self._add(statement, (now - self.detail_days * 86400, PRUNE_ROWS))
        for statement in PRUNE_JOBS:
            self._add(statement, (now - self.retention_days * 86400, PRUNE_ROWS))

    # -- opening it --------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        """The file; a new one in place of a damaged one; a makeshift while there is no room for either.

        Raises JournalError: written by a newer controller, no folder, no permission.
        """
        try:
            return self._connect()
        except sqlite3.Error as error:
            if not is_damage(error):
                return self._make_do(error)
            damage = error
        self._tell(set_aside(self.path, damage))
        try:
            return self._connect()
        except sqlite3.Error as error:
            return self._make_do(error)

    def _make_do(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Where it is only room that is missing: read the old file without the shared memory that other
        connections need; or read nothing."""
        if not is_no_room(error, self.path):
            raise self._failed("open", error) from error
        _log.error(
            "%s; going on without it: what it should hold is kept in memory", self._failed("open", error)
        )
        self._writable = False
        self._makeshift = "exclusive"
        return self._makeshift_connection()

    def _makeshift_connection(self) -> sqlite3.Connection:
        if self._makeshift == "exclusive":
            with contextlib.suppress(sqlite3.Error):
                return self._connect(exclusive=True)
        self._makeshift = "memory"
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        migrate(connection, ":memory:")
        return connection

    def _open_properly(self) -> None:
        """There may be room again. Raises sqlite3.Error while there is none."""
        self._connection.close()
        try:
            self._connection = self._connect()
        except sqlite3.Error:
            self._connection = self._makeshift_connection()
            raise
        was, self._makeshift = self._makeshift, ""
        _log.warning("journal %s: open again", self.path)
        if was == "memory":
            self._end_what_was_open()

    def _end_what_was_open(self) -> None:
        """End, before anything else is written, slices and operations of a controller whose journal could
        not be read when this one began."""
        rows = self._connection.execute("SELECT value FROM state WHERE key = 'heartbeat'").fetchall()
        seen = self._json(rows[0][0], "heartbeat") if rows else None
        if isinstance(seen, int | float):
            jobs = self._connection.execute("SELECT job_id FROM slices WHERE end IS NULL").fetchall()
            for (job_id,) in jobs:
                self._queue.appendleft((_CLOSE_SLICE, (seen, "the controller stopped", job_id)))
                self._queue.appendleft((_COUNT_SLICE, (seen, seen, job_id)))
        for (number,) in self._connection.execute(
            "SELECT op_id FROM operations WHERE end IS NULL"
        ).fetchall():
            self._queue.appendleft((_END, (clock.time(), "interrupted", "", number)))

    def _connect(self, *, exclusive: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = forgiving
        try:
            with garbled():
                if exclusive:
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
                _check(connection, self.path)
                migrate(connection, str(self.path))
            self._file = self.path.stat()
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_there(self) -> bool:
        try:
            return self._file is None or os.path.samestat(self._file, self.path.stat())
        except OSError:
            return False

    def _replace(self, error: sqlite3.Error) -> None:
        """The file turned out to be damaged while it was in use. Raises JournalError."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._begin_anew(set_aside(self.path, error))

    def _begin_anew(self, message: str) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self.generation += 1
        self._last_decision.clear()
        self._tell(message)
        try:
            self._connection = self._open()
        except JournalError:
            self._makeshift = "memory"
            self._connection = self._makeshift_connection()
            raise

    def _tell(self, message: str) -> None:
        self.messages.append(message)
        _log.error("%s", message)
        self.record_event(clock.time(), None, None, "journal", message)

    def _failed(self, what: str, error: sqlite3.Error) -> JournalError:
        code = getattr(error, "sqlite_errorname", "")  # Python 3.11
        hint = ""
        if "FULL" in code or "full" in str(error):
            hint = ": free space on its file system"
        elif "I/O error" in str(error):
            hint = ": look at its disk, and whether that is full"
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


def _taken(path: Path) -> JournalLock:
    """Two controllers on one cluster would undo each other's work: the second is refused here."""
    lock = JournalLock(path)
    if not lock.take():
        raise JournalError(f"another controller (pid {lock.holder}) uses the journal {path}: stop it first")
    return lock


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage, for a bounded time. Raises Damaged, sqlite3.Error."""
    deadline = clock.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: clock.monotonic() > deadline, 100_000)
    try:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        _log.info("journal %s: no damage seen in %g s; see `gandiva journal verify`", path, CHECK_SECONDS)
        return
    finally:
        connection.set_progress_handler(None, 0)
    if answer != "ok":
        raise Damaged(answer)


def _cut(text: str) -> str:
    """Bounded, and without what SQLite cannot store (lone surrogates, from odd file names)."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8").replace("\0", "�")
