# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows that wait to be written. Their number is bounded, however long the disk takes none."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from controller.journal.statements import BEGIN, DECISION, END, EVENT, JOB, NO_NOTE, NOTE, STATE, STEP, Row

MAX_QUEUED = 200_000
"""Beyond this the oldest decisions, events and operations go first, and beyond twice as many the oldest of
everything."""

_WORDS = frozenset({DECISION, EVENT, BEGIN, STEP, END})


class RowQueue:
    """In the order in which they are written."""

    def __init__(self) -> None:
        self.rows: deque[Row] = deque()
        self._shed_at = MAX_QUEUED

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: Row) -> int:
        """One more row. Returns how many others were dropped for it."""
        self.rows.append(row)
        return self._shed() if len(self.rows) > self._shed_at else 0

    def put_first(self, rows: Iterable[Row]) -> None:
        """Write these before all others."""
        self.rows.extendleft(reversed(list(rows)))

    def first(self, number: int) -> list[Row]:
        """The next rows to write, at most so many."""
        return list(islice(self.rows, number))

    def written(self, number: int) -> None:
        """The first so many rows are in the file."""
        for _ in range(number):
            self.rows.popleft()
        if not self.rows:
            self._shed_at = MAX_QUEUED

    def _shed(self) -> int:
        """Let go of words and of values that a later row replaces; keep the accounting."""
        before = len(self.rows)
        newest = {key: index for index, row in enumerate(self.rows) if (key := _replaces(row)) is not None}
        self.rows = deque(
            row
            for index, row in enumerate(self.rows)
            if not (row[0] in _WORDS and index < before // 2)
            and ((key := _replaces(row)) is None or newest[key] == index)
        )
        while len(self.rows) > 2 * MAX_QUEUED:
            self.rows.popleft()
        # Not again for every row.
        self._shed_at = max(MAX_QUEUED, len(self.rows) + MAX_QUEUED // 4)
        return before - len(self.rows)


def _replaces(row: Row) -> tuple[object, ...] | None:
    """Of rows with the same key only the last one counts."""
    statement, parameters = row
    if statement in (STATE, JOB):
        return (statement, parameters[0])
    if statement in (NOTE, NO_NOTE):
        return (NOTE, *parameters[:2])
    return None
