# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a journal is where it should be, with an error that says what is wrong where it is not."""

from __future__ import annotations

import stat
from pathlib import Path

from controller.errors import JournalError


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
