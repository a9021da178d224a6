# SPDX-License-Identifier: GPL-2.0-or-later
"""What an earlier controller left open in a journal that could not be read when this one started."""

from __future__ import annotations

import sqlite3
import time as clock
from pathlib import Path

from controller.journal.damage import parsed
from controller.journal.statements import CLOSE_SLICE, COUNT_SLICE, END, Row


def interrupted(connection: sqlite3.Connection, path: Path) -> list[Row]:
    """Rows that end its operations, and its slices at its last heartbeat. Raises sqlite3.Error."""
    now = clock.time()
    operations = connection.execute("SELECT op_id FROM operations WHERE end IS NULL").fetchall()
    rows: list[Row] = [(END, (now, "interrupted", "", op_id)) for (op_id,) in operations]
    saved = connection.execute("SELECT value FROM state WHERE key = 'heartbeat'").fetchall()
    seen = parsed(saved[0][0], path, "heartbeat") if saved else None
    if isinstance(seen, int | float):
        for (job_id,) in connection.execute("SELECT job_id FROM slices WHERE end IS NULL").fetchall():
            rows.append((COUNT_SLICE, (seen, seen, seen, job_id)))
            rows.append((CLOSE_SLICE, (seen, "the controller stopped", job_id)))
    return rows
