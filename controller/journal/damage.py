# SPDX-License-Identifier: GPL-2.0-or-later
"""Telling a damaged journal from a full disk, and moving a damaged one out of the way."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time as clock
from collections.abc import Iterator
from pathlib import Path

from controller.errors import JournalError

PARTS = ("", "-wal", "-shm")
"""What SQLite keeps of one journal, by the end of the file's name."""

# Texts, because Python 3.10 does not tell SQLite's error code.
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
    pass, and is nobody's mistake in the settings."""
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
