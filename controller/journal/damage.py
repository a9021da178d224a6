# SPDX-License-Identifier: GPL-2.0-or-later
"""What SQLite's errors mean: a damaged journal or a full disk; moving a damaged one out of the way."""

import contextlib
import json
import logging
import os
import sqlite3
import time as clock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controller.errors import JournalError

log = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
"""Longest check for damage when the file is opened."""

PARTS = ("", "-wal", "-shm")
"""What SQLite keeps of one journal, by the end of the file's name."""

# Texts: to SQLite a missing table is an error like any other, without a code of its own.
_DAMAGE = (
    "not a database",
    "malformed",
    "no such table",
    "no such column",
    "already exists",
    "has no column",
)


class Damaged(sqlite3.DatabaseError):
    """A check found what SQLite itself did not mind."""


def is_damage(error: sqlite3.Error) -> bool:
    """The content of the file is wrong: no waiting helps."""
    return isinstance(error, Damaged) or any(text in str(error) for text in _DAMAGE)


def is_no_room(error: sqlite3.Error, path: Path) -> bool:
    """The file system of the journal does not take what it should: full, failing, or read-only. That may
    pass, and is no mistake in the settings."""
    text = str(error)
    if "disk is full" in text or "disk I/O error" in text:
        return True
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return False
    stuck = (
        bool(room.f_flag & os.ST_RDONLY) or room.f_bavail == 0 or (room.f_files > 0 and room.f_favail == 0)
    )
    return stuck and ("unable to open" in text or "readonly" in text)


def forgiving(text: bytes) -> str:
    """For `sqlite3.Connection.text_factory`: one byte that has changed must not make the rest unreadable."""
    return text.decode("utf-8", "replace")


@contextlib.contextmanager
def garbled() -> Iterator[None]:
    """Around SQLite's calls: where damage gets into an error message, Python cannot even read that."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise Damaged("its text is garbled") from error


def parsed(text: Any, path: Path, what: str) -> Any:
    """The JSON value, or None: text that is damaged counts as not there, and the controller starts."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        log.error("journal %s: %s: %s; going on without it", path, what, error)
        return None


def quick_check(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage, for a bounded time. Raises Damaged, sqlite3.Error."""
    deadline = clock.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: clock.monotonic() > deadline, 100_000)
    try:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        log.info("journal %s: no damage seen in %g s; see `gandiva journal verify`", path, CHECK_SECONDS)
        return
    finally:
        connection.set_progress_handler(None, 0)
    if answer != "ok":
        raise Damaged(answer)


def journal_error(what: str, path: Path, error: sqlite3.Error) -> JournalError:
    """What to tell people when the journal cannot be opened, read or written, and what to do about it."""
    text, hint = str(error), ""
    if "full" in text:
        hint = ": free space on its file system"
    elif "I/O error" in text:
        hint = ": look at its disk, and whether that is full"
    elif "locked" in text:
        hint = ": another process holds it; look with `fuser`"
    elif "readonly" in text or "unable to open" in text:
        hint = ": it must be writable by the user of the controller"
    return JournalError(f"cannot {what} the journal {path}: {text}{hint}")


def set_aside(path: Path, error: sqlite3.Error) -> str:
    """Rename a damaged journal, in its folder. Returns what to tell people; raises JournalError."""
    why = " ".join(str(error).split())
    suffix = f".damaged-{clock.strftime('%Y%m%dT%H%M%S')}"
    number = 1
    while path.with_name(path.name + suffix).exists():
        number += 1
        suffix = f"{suffix.split('_')[0]}_{number}"
    try:
        for part in PARTS:
            file = path.with_name(path.name + part)
            if file.exists():
                file.rename(path.with_name(path.name + suffix + part))
    except OSError as failure:
        raise JournalError(
            f"the journal {path} is damaged ({why}) and cannot be moved away: {failure.strerror}"
        ) from failure
    return (
        f"the journal {path} is damaged ({why}): it was set aside as {path.name}{suffix} and a new one "
        "begun from what Slurm and the nodes say; jobs go on, but what they used before now is missing "
        "from reports"
    )
