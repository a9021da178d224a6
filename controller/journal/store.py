# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows on their way to the journal's file, and what is read from it.

Nothing that is done to jobs depends on the journal, so nothing that happens to it may keep them from their
GPUs (docs/journal.md): while its disk is full rows are kept in memory, and a file that is damaged or gone is
replaced by a new one.
"""

import contextlib
import logging
import sqlite3
import threading
import time as clock
from collections import deque
from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from controller.errors import JournalError
from controller.journal import statements as sql
from controller.journal.damage import garbled, is_damage, journal_error, parsed, set_aside
from controller.journal.file import JournalFile
from controller.journal.records import stored_text
from controller.journal.statements import Row

log = logging.getLogger(__name__)
T = TypeVar("T")

ROWS_AT_ONCE = 5000
"""Most rows of one transaction: what piled up while the disk was full is written in parts."""

MAX_QUEUED = 200_000
"""Beyond this the oldest decisions, events and operations go first, and beyond twice as many the oldest of
everything: the number of rows that wait is bounded, however long the disk takes none."""

_WORDS = frozenset({sql.DECISION, sql.EVENT, sql.BEGIN, sql.STEP, sql.END})

_BAD_ROW = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
)


class Store:
    """The queue and the file. `lock` is held by those who call several methods as one."""

    def __init__(self, path: Path) -> None:
        """Raises JournalError."""
        self.path = path
        self.lock = threading.RLock()
        self.messages: list[str] = []
        """What became of the file and is worth telling; it is also logged."""
        self.generation = 0
        """Grows when a new file takes the place of one that was damaged or removed."""
        self.queue = RowQueue()
        self._writable = False
        self.file = JournalFile(path, self._tell)
        self._writable = self.file.is_open

    def add(self, statement: str, *parameters: object) -> None:
        """Queue a row."""
        with self.lock:
            if dropped := self.queue.add((statement, parameters)):
                log.warning("journal %s: dropped %d rows that could not be written", self.path, dropped)

    def write_through(self, statement: str, *parameters: object) -> None:
        """Queue a row and write it at once, where the disk takes it."""
        with self.lock:
            self.add(statement, *parameters)
            self.flush()

    def flush(self) -> None:
        """Commit where that works. Where it does not, the loop hears of it once per cycle; what it has begun
        it must be able to finish."""
        if self._writable:
            with contextlib.suppress(JournalError):
                self.commit()

    def read(self, statement: str, *parameters: object) -> list[Any]:
        """Rows of the file; what is queued is written before, where that works. Raises JournalError."""
        with self.lock:
            self.flush()
            return self._try("read", lambda: self.file.connection.execute(statement, parameters).fetchall())

    def commit(self) -> None:
        """Write what is queued. After a JournalError the rows stay queued: call again in the next cycle."""
        with self.lock:
            self._writable = False
            self._try("write", self._write_queue)
            self._writable = True

    def close(self) -> None:
        """Write what is queued and let go of the file. What cannot be written is lost; the log says so."""
        with self.lock:
            try:
                self.commit()
            except JournalError as error:
                log.error("%s; %d rows are lost", error, len(self.queue))
            finally:
                self.file.close()

    def _try(self, what: str, call: Callable[[], T], again: bool = False) -> T:
        """The call; where the file turns out to be damaged, `again` with a new one. Raises JournalError."""
        try:
            with garbled():
                return call()
        except sqlite3.Error as error:
            if again or not is_damage(error):
                raise journal_error(what, self.path, error) from error
            self.file.close()
            self._begin_anew(set_aside(self.path, error))
        return self._try(what, call, again=True)

    def _write_queue(self) -> None:
        if self.file.is_open and not self.file.is_there():
            self._begin_anew(
                f"the journal {self.path} was removed: a new one was begun; jobs go on, but what they used "
                "before now is missing from reports"
            )
        if not self.file.is_open and self.file.open_properly():
            self.queue.extendleft(reversed(_interrupted(self.file.connection, self.path)))
        while rows := list(islice(self.queue, ROWS_AT_ONCE)):
            try:
                with self.file.transaction() as connection:
                    for statement, group in groupby(rows, key=lambda row: row[0]):
                        connection.executemany(statement, [parameters for _, parameters in group])
            except _BAD_ROW as error:
                log.error("journal %s: a row cannot be stored (%s); storing the others", self.path, error)
                self._store_singly(rows)
            for _ in rows:
                self.queue.popleft()
            log.debug("journal %s: %d rows written", self.path, len(rows))

    def _store_singly(self, rows: list[Row]) -> None:
        """A row that no disk will ever take must not hold up the others for ever."""
        with self.file.transaction() as connection:
            for statement, parameters in rows:
                try:
                    connection.execute(statement, parameters)
                except _BAD_ROW as error:
                    name = " ".join(statement.split()[:3])
                    log.error("journal %s: lost: %s %r: %s", self.path, name, parameters, error)

    def _begin_anew(self, message: str) -> None:
        self.generation += 1
        self._tell(message)
        self.file.begin_anew()
        self._writable = self._writable and self.file.is_open

    def _tell(self, message: str) -> None:
        self.messages.append(message)
        log.error("%s", message)
        self.add(sql.EVENT, clock.time(), None, None, "journal", stored_text(message), None)


class RowQueue(deque[Row]):
    """In the order in which they are written."""

    shed_at = MAX_QUEUED

    def add(self, row: Row) -> int:
        """One more row. Returns how many others were dropped for it."""
        if not self:
            self.shed_at = MAX_QUEUED
        self.append(row)
        return self._shed() if len(self) > self.shed_at else 0

    def _shed(self) -> int:
        """Let go of words and of values that a later row replaces; keep the accounting."""
        before = len(self)
        newest = {key: index for index, row in enumerate(self) if (key := _replaces(row)) is not None}
        kept = [
            row
            for index, row in enumerate(self)
            if not (row[0] in _WORDS and index < before // 2)
            and ((key := _replaces(row)) is None or newest[key] == index)
        ]
        self.clear()
        self.extend(kept[-2 * MAX_QUEUED :])
        # Not again for every row.
        self.shed_at = max(MAX_QUEUED, len(self) + MAX_QUEUED // 4)
        return before - len(self)


def _replaces(row: Row) -> tuple[object, ...] | None:
    """Of rows with the same key only the last one counts."""
    statement, parameters = row
    if statement in (sql.STATE, sql.JOB):
        return (statement, parameters[0])
    if statement in (sql.NOTE, sql.NO_NOTE):
        return (sql.NOTE, *parameters[:2])
    return None


def _interrupted(connection: sqlite3.Connection, path: Path) -> list[Row]:
    """Rows that end what an earlier controller left open in a file that could not be read until now: its
    operations, and its slices at its last heartbeat. Raises sqlite3.Error."""
    now = clock.time()
    operations = connection.execute("SELECT op_id FROM operations WHERE end IS NULL").fetchall()
    rows: list[Row] = [(sql.END, (now, "interrupted", "", op_id)) for (op_id,) in operations]
    saved = connection.execute("SELECT value FROM state WHERE key = 'heartbeat'").fetchall()
    seen = parsed(saved[0][0], path, "heartbeat") if saved else None
    if isinstance(seen, int | float):
        for (job_id,) in connection.execute("SELECT job_id FROM slices WHERE end IS NULL").fetchall():
            rows.append((sql.COUNT_SLICE, (seen, seen, seen, job_id)))
            rows.append((sql.CLOSE_SLICE, (seen, "the controller stopped", job_id)))
    return rows
