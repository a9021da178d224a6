# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller's own state and policies' memory in the journal's file."""

from __future__ import annotations

import json
from typing import Any

from controller.journal.damage import parsed
from controller.journal.statements import NO_NOTE, NOTE, PRUNE_DETAIL, PRUNE_JOBS, STATE
from controller.journal.store import Part
from controller.model import JobId, Note

PRUNE_ROWS = 4000
"""Old rows deleted at once per table at most, so that no turn is long."""
PRUNE_INTERVAL_SECONDS = 60.0
_DAY_SECONDS = 86400.0


class State(Part):
    """`JournalPort` says what each call means."""

    retention_days: float
    detail_days: float
    _next_prune = 0.0

    def load_state(self, key: str) -> Any:
        rows = self._store.read("SELECT value FROM state WHERE key = ?", key)
        return parsed(rows[0][0], self._store.path, f"state {key}") if rows else None

    def save_state(self, key: str, value: Any) -> None:
        self._store.add(STATE, key, json.dumps(value))

    def notes(self, policy: str) -> dict[JobId, Note]:
        rows = self._store.read(
            "SELECT job_id, note FROM notes LEFT JOIN jobs USING (job_id) WHERE policy = ? AND end IS NULL",
            policy,
        )
        found = ((JobId(i), parsed(text, self._store.path, f"note on job {i}")) for i, text in rows)
        return {job_id: tuple(note) for job_id, note in found if isinstance(note, list)}

    def save_note(self, policy: str, job_id: JobId, note: Note) -> None:
        if note is None:
            self._store.add(NO_NOTE, policy, job_id)
        else:
            self._store.add(NOTE, policy, job_id, json.dumps(note))

    def last_heartbeat(self) -> float | None:
        value = self.load_state("heartbeat")
        return float(value) if isinstance(value, int | float) else None

    def heartbeat(self, time: float) -> None:
        """Deletes what is old as well, a little at a time."""
        with self._store.lock:
            self.save_state("heartbeat", time)
            if time >= self._next_prune:
                self._next_prune = time + PRUNE_INTERVAL_SECONDS
                for statement in PRUNE_DETAIL:
                    self._store.add(statement, time - self.detail_days * _DAY_SECONDS, PRUNE_ROWS)
                for statement in PRUNE_JOBS:
                    self._store.add(statement, time - self.retention_days * _DAY_SECONDS, PRUNE_ROWS)
