# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of a simulation: the same tables, in memory."""

import math

from controller.journal import records
from controller.journal.file import IN_MEMORY
from controller.journal.lock import JournalLock
from controller.journal.records import Decision, Event, Slice
from controller.journal.store import ROWS_AT_ONCE
from controller.journal.writer import Journal


class MemoryJournal(Journal):
    """Nothing is ever pruned, and all that was recorded can be read."""

    def __init__(self) -> None:
        # (The lock is not taken: no other process can write this.)
        super().__init__(IN_MEMORY, lock=JournalLock(IN_MEMORY))
        self._next_prune = math.inf

    def write_through(self, statement: str, *parameters: object) -> None:
        self.add(statement, *parameters)

    def commit(self) -> None:
        """Only now and then: reading writes what is queued."""
        if len(self.queue) >= ROWS_AT_ONCE:
            super().commit()

    def flush(self) -> None:
        super().commit()

    @property
    def slices(self) -> list[Slice]:
        """Closed ones, in the order of their begins."""
        rows = self.read(f"{records.SLICES} WHERE end IS NOT NULL ORDER BY id")
        return [records.slice_of(row) for row in rows]

    @property
    def decisions(self) -> list[Decision]:
        """In the order in which they were recorded."""
        return [records.decision_of(row) for row in self.read(f"{records.DECISIONS} ORDER BY id")]

    @property
    def events(self) -> list[Event]:
        """In the order in which they were recorded."""
        return [Event(*row) for row in self.read(f"{records.EVENTS} ORDER BY id")]
