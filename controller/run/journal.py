# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of a study, while `gandiva run` lives: on its host alone.

SQLite has those that use a file share memory, which hosts cannot, and locks it, which not every network file
system can. In the study's folder, which other hosts see, is a copy: replaced each minute and at the end, and
never written to. A supervisor whose host is lost leaves one that is a minute old. What a trial is and has
become is not in it, but in `trials/`.
"""

import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from controller.errors import JournalError
from controller.journal import Journal
from controller.journal.damage import PARTS
from controller.journal.lock import JournalLock
from controller.journal.reader import open_read_only

log = logging.getLogger(__name__)

FIRST_COPY_SECONDS, COPY_SECONDS = 5.0, 60.0
RETENTION_DAYS = 3650.0
_BUSY_SECONDS = 5.0


@contextmanager
def study_journal(here: Path, copy: Path, lock: JournalLock) -> Iterator[Journal]:
    """`here`: on this host. `lock`: taken; given back at the end. Raises JournalError, also where the last
    copy cannot be written: the next supervisor on this host goes on with `here`."""
    _begin(here, copy)
    over = threading.Event()

    def keep_copying() -> None:
        seconds = FIRST_COPY_SECONDS  # its trials are in the journal by then
        while not over.wait(seconds):
            seconds = COPY_SECONDS
            try:
                write_copy(here, copy)
            except JournalError as error:
                log.error("journal %s: %s", here, error)

    with Journal(here, retention_days=RETENTION_DAYS, detail_days=RETENTION_DAYS, lock=lock) as journal:
        write_copy(here, copy)
        copying = threading.Thread(target=keep_copying, name="copies of the journal", daemon=True)
        copying.start()
        try:
            yield journal
        finally:
            over.set()
            copying.join()
            with suppress(JournalError):
                journal.commit()
            write_copy(here, copy)


def write_copy(here: Path, copy: Path) -> None:
    """Whoever reads it has the old or the new one. Raises JournalError."""
    whole, new = here.with_name("journal.copy"), copy.with_name(f".{copy.name}.new")
    try:
        whole.unlink(missing_ok=True)
        with (
            closing(open_read_only(here, busy_seconds=_BUSY_SECONDS)) as source,
            closing(sqlite3.connect(whole)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        shutil.copyfile(whole, new)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(copy)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(
            f"cannot write {copy}, a copy of the journal, by way of {whole}: {error}"
        ) from error


def _begin(here: Path, copy: Path) -> None:
    """With what is newer: since the supervisor on this host was killed, one on another may have gone on.
    Without a copy it is another study than any before in this folder. Raises JournalError."""
    try:
        if copy.exists() and here.exists() and _seen(here) >= _seen(copy, still=True):
            return
        for part in PARTS:
            here.with_name(here.name + part).unlink(missing_ok=True)
        if copy.exists():
            shutil.copyfile(copy, here)
    except OSError as error:
        raise JournalError(f"cannot make {here}, the study's journal: {error}") from error


def _seen(journal: Path, *, still: bool = False) -> float:
    """The last heartbeat in it: seconds since the epoch; before all others where there is none."""
    try:
        with closing(open_read_only(journal, busy_seconds=_BUSY_SECONDS, still=still)) as connection:
            (value,) = connection.execute("SELECT value FROM state WHERE key = 'heartbeat'").fetchone()
        return float(value)
    except (sqlite3.Error, TypeError, ValueError):
        return 0.0
