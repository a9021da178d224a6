# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal's file as SQLite has it open: the file itself, or a makeshift while there is no room for that.

Durability: WAL with synchronous=NORMAL. What is committed survives the death of the process; the last
moments before a power failure may be lost, which does no harm, since Slurm and the nodes are asked anyway.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from controller.errors import JournalError
from controller.journal.damage import (
    forgiving,
    garbled,
    is_damage,
    is_no_room,
    journal_error,
    quick_check,
    set_aside,
)
from controller.journal.schema import migrate

log = logging.getLogger(__name__)

IN_MEMORY = Path(":memory:")
"""In the place of a file: SQLite's name for what is gone when it is closed."""
BUSY_SECONDS = 2.0
"""How long a call waits for another process that holds the file."""


class JournalFile:
    """One connection, for one thread at a time."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Opens the file; a new one in place of a damaged one, which `tell` is told; a makeshift while there
        is no room for either. Raises JournalError: written by a newer controller, no folder, no
        permission."""
        self.path = path
        self.is_open = True
        """False: a makeshift is, as there is no room to open the file properly."""
        self.is_unread = False
        """Nothing of the file can be read."""
        self._tell = tell
        self._identity: os.stat_result | None = None
        self.connection = self._open()

    def open_properly(self) -> bool:
        """End the makeshift. True: nothing of the file could be read until now. Raises sqlite3.Error while
        there is still no room."""
        self.connection.close()
        try:
            self.connection = self._connect()
        except sqlite3.Error:
            self.connection = self._makeshift_connection()
            raise
        log.warning("journal %s: open again", self.path)
        self.is_open, was_unread, self.is_unread = True, self.is_unread, False
        return was_unread

    def begin_anew(self) -> None:
        """Open what is in the old one's place. Raises JournalError; then rows are only kept in memory."""
        self.close()
        try:
            self.connection = self._open()
        except JournalError:
            self.is_open, self.is_unread = False, True
            self.connection = self._makeshift_connection()
            raise

    def is_there(self) -> bool:
        """False: the file was removed, or another one is in its place."""
        try:
            return self._identity is None or os.path.samestat(self._identity, self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block, or nothing of it. Raises sqlite3.Error."""
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection

    def _open(self, again: bool = False) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.Error as error:
            if again or not is_damage(error):
                return self._make_do(error)
            self._tell(set_aside(self.path, error))
        return self._open(again=True)

    def _make_do(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Go on without the file, where it is only room that is missing."""
        failure = journal_error("open", self.path, error)
        if not is_no_room(error, self.path):
            raise failure from error
        log.error("%s; going on without it: what it should hold is kept in memory", failure)
        self.is_open = False
        return self._makeshift_connection()

    def _makeshift_connection(self) -> sqlite3.Connection:
        """The file without the shared memory that other connections need; else one in memory."""
        if not self.is_unread:
            with contextlib.suppress(sqlite3.Error):
                return self._connect(exclusive=True)
        self.is_unread = True
        connection = sqlite3.connect(IN_MEMORY, isolation_level=None, check_same_thread=False)
        migrate(connection, str(IN_MEMORY))
        return connection

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
                quick_check(connection, self.path)
                migrate(connection, str(self.path))
            if self.path != IN_MEMORY:
                self._identity = self.path.stat()
        except BaseException:
            connection.close()
            raise
        return connection
