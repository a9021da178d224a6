# SPDX-License-Identifier: GPL-2.0-or-later
"""What the policy remembers, kept in the journal: one row for each job, and one for the rest."""

from __future__ import annotations

from typing import Any

from controller.journal.port import JournalPort
from controller.model import JobId, Memory, Note


class PolicyMemory:
    """The memory of one policy, by its name."""

    def __init__(self, journal: JournalPort, policy_name: str) -> None:
        """Begins with nothing: see `recall`."""
        self._journal, self._name = journal, policy_name
        self._common: dict[str, Any] = {}
        self._notes: dict[JobId, Note] = {}

    @property
    def _key(self) -> str:
        return f"policy:{self._name}"

    @property
    def memory(self) -> Memory:
        """All of it, as it is until `take`."""
        return Memory(self._common, self._notes)

    def recall(self) -> None:
        """What the journal has. Raises JournalError."""
        common = self._journal.load_state(self._key)
        notes = self._journal.notes(self._name)
        self._common, self._notes = common if isinstance(common, dict) else {}, notes

    def save(self, changes: Memory) -> None:
        """Write a plan's changes."""
        if changes.common:
            self._journal.save_state(self._key, {**self._common, **changes.common})
        for job_id, note in changes.jobs.items():
            self._journal.save_note(self._name, job_id, note)

    def take(self, changes: Memory) -> None:
        """Remember a plan's changes."""
        self._common.update(changes.common)
        for job_id, note in changes.jobs.items():
            if note is None:
                self._notes.pop(job_id, None)
            else:
                self._notes[job_id] = note

    def write_anew(self) -> None:
        """All of it, into a new journal."""
        self._journal.save_state(self._key, self._common)
        for job_id, note in self._notes.items():
            self._journal.save_note(self._name, job_id, note)
