# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of a simulation: the same tables, in memory."""

import math

from controller.journal.file import IN_MEMORY
from controller.journal.lock import JournalLock
from controller.journal.records import Decision, Event, Slice, gpu_set
from controller.journal.store import ROWS_AT_ONCE
from controller.journal.writer import Journal
from controller.model import JobId


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
        rows = self.read(
            "SELECT job_id, gpus, start, end, reason FROM slices WHERE end IS NOT NULL ORDER BY id"
        )
        return [Slice(JobId(job_id), gpu_set(gpus), *rest) for job_id, gpus, *rest in rows]

    @property
    def decisions(self) -> list[Decision]:
        """In the order in which they were recorded."""
        rows = self.read("SELECT time, job_id, action, reason, gpus, reason_code FROM decisions ORDER BY id")
        return [
            Decision(time, JobId(job_id), action, reason, gpu_set(gpus), code)
            for time, job_id, action, reason, gpus, code in rows
        ]

    @property
    def events(self) -> list[Event]:
        """In the order in which they were recorded."""
        rows = self.read("SELECT time, job_id, node, kind, message, gain FROM events ORDER BY id")
        return [Event(*row) for row in rows]
