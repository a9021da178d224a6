# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a journal is where it should be, and opening it to read."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from controller.errors import JournalError
from controller.journal.damage import forgiving


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


def open_read_only(path: Path, *, busy_seconds: float) -> sqlite3.Connection:
    """A connection that never writes. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, timeout=busy_seconds, isolation_level=None
    )
    connection.text_factory = forgiving
    return connection
