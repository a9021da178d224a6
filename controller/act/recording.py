# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor's recorder, writing to the journal."""

from __future__ import annotations

from controller.act.actions import Action
from controller.act.recorder import Outcome, Step
from controller.journal.port import JournalPort
from controller.model import GpuSet, JobId


class JournalRecorder:
    """Implements `Recorder`: operations, slices, decisions and events go into the journal as they happen."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        """Write the operation ahead, and the decision behind it."""
        operation, kind = self._journal.new_operation_id(), type(action).__name__.lower()
        self._journal.begin_operation(operation, action.job_id, kind, now, gpus, action.reason)
        self._journal.record_decision(now, action.job_id, kind, action.reason, gpus)
        return operation

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        """Write the step ahead."""
        self._journal.step_operation(operation, step.value, now)

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        """End the operation."""
        self._journal.end_operation(operation, outcome.value, now, error)

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        """Open a slice."""
        self._journal.open_slice(job_id, gpus, now)

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        """Close it."""
        self._journal.close_slice(job_id, now, reason)

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        """Record an event."""
        self._journal.record_event(now, job_id, None, kind, message)
