# SPDX-License-Identifier: GPL-2.0-or-later
"""Giving space back to the file system: deletes at once what the controller deletes little by little."""

import sqlite3
import time as clock
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from controller.errors import JournalError
from controller.journal.damage import PARTS, is_damage
from controller.journal.lock import JournalLock
from controller.journal.reader import require_journal
from controller.journal.schema import migrate
from controller.journal.statements import pruning

_ALL_ROWS = 1 << 62


@dataclass(frozen=True, slots=True)
class Vacuumed:
    rows_deleted: int
    bytes_before: int
    bytes_after: int


def vacuum(path: Path, *, retention_days: float, detail_days: float) -> Vacuumed:
    """Delete what is older than the settings want it, then write the file anew without the gaps.

    Holds the journal's lock meanwhile, so that no controller begins to lead. Needs as much free space as the
    file is large. Raises JournalError: no such journal, a controller leads with it, damaged, no room.
    """
    require_journal(path)
    lock = JournalLock(path)
    if not lock.take():
        raise JournalError(
            f"a controller (pid {lock.holder}) leads with the journal {path}: stop it first (it deletes what "
            "is old by itself, and uses the space again)"
        )
    try:
        before = _size_bytes(path)
        with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as connection:
            migrate(connection, str(path))
            changes = connection.total_changes
            connection.execute("BEGIN IMMEDIATE")
            for statement, parameters in pruning(clock.time(), retention_days, detail_days, _ALL_ROWS):
                connection.execute(statement, parameters)
            connection.execute("COMMIT")
            deleted = connection.total_changes - changes
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Vacuumed(deleted, before, _size_bytes(path))
    except sqlite3.Error as error:
        if is_damage(error):
            raise JournalError(
                f"the journal {path} is damaged ({error}): the next start of a controller sets it aside"
            ) from error
        hint = (
            f": free about {_size_bytes(path) >> 20} MiB on its file system" if "full" in str(error) else ""
        )
        raise JournalError(f"cannot vacuum the journal {path}: {error}{hint}") from error
    finally:
        lock.release()


def _size_bytes(path: Path) -> int:
    files = (path.with_name(path.name + part) for part in PARTS)
    return sum(file.stat().st_size for file in files if file.exists())
