# SPDX-License-Identifier: GPL-2.0-or-later
"""The writing side of the journal.

Calls only queue rows; `commit()`, once per turn of the loop, writes them in one transaction. Two kinds of
call write through at once: those that begin or advance an operation, which must be on disk before the
controller acts, and those that read.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from controller.errors import JournalError
from controller.journal.jobs import Jobs
from controller.journal.lock import JournalLock
from controller.journal.operations import Operations
from controller.journal.slices import Slices
from controller.journal.state import State
from controller.journal.store import Store


class Journal(Operations, Slices, Jobs, State):
    """Implements `JournalPort`: the one writer of a journal's file. Safe to call from several threads.

    Every method that touches the disk raises JournalError.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_days: float = 90.0,
        detail_days: float = 14.0,
        lock: JournalLock | None = None,
    ) -> None:
        """Ended jobs are kept for `retention_days`; slices, decisions and events for `detail_days`.

        `lock`: taken already; given back by `close`. Raises JournalError: another process writes this
        journal, or the file cannot be opened.
        """
        self.path = path
        self.retention_days = retention_days
        self.detail_days = detail_days
        self._leading = lock or _taken(path)
        try:
            super().__init__(Store(path))
        except BaseException:
            self._leading.release()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def generation(self) -> int:
        """Grows when a new file takes the place of one that was damaged or removed."""
        return self._store.generation

    @property
    def messages(self) -> list[str]:
        """What became of the file and is worth telling; it is also logged."""
        return self._store.messages

    def commit(self) -> None:
        """Write what is queued. After a JournalError the rows stay queued: call again at the next turn."""
        self._store.commit()

    def close(self) -> None:
        """Write what is queued and let go of the file. What cannot be written is lost; the log says so."""
        try:
            self._store.close()
        finally:
            self._leading.release()


def _taken(path: Path) -> JournalLock:
    """Two controllers on one cluster would undo each other's work: the second is refused here."""
    lock = JournalLock(path)
    if not lock.take():
        raise JournalError(f"another controller (pid {lock.holder}) uses the journal {path}: stop it first")
    return lock
