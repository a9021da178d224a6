# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor's recorder, writing to the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from controller.actions import Action
from controller.executor import Outcome, Step
from controller.journal import JobRecord, JobTotals, Journal, OpenOperation
from controller.model import GpuSet, JobId


class Records(Protocol):
    """What the loop itself keeps beyond one run: the journal, or nothing but the present in a simulation.
    `Journal` says what each call means."""

    def load_state(self, key: str) -> Any: ...

    def save_state(self, key: str, value: Any) -> None: ...

    def totals(self) -> Mapping[JobId, JobTotals]: ...

    def last_heartbeat(self) -> float | None: ...

    def heartbeat(self, time: float) -> None: ...

    def open_operations(self) -> Sequence[OpenOperation]: ...

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None: ...

    def close_open_slices(self, time: float) -> Sequence[JobId]: ...

    def upsert_job(self, job: JobRecord) -> None: ...

    def commit(self) -> None: ...


class JournalRecorder:
    """Operations, slices, decisions and events go into the journal as they happen."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        operation = self._journal.new_operation_id()
        kind = type(action).__name__.lower()
        names = [str(gpu) for gpu in sorted(gpus)]
        self._journal.begin_operation(
            operation, action.job_id, kind, now, {"gpus": names, "reason": action.reason}
        )
        self._journal.record_decision(now, action.job_id, kind, action.reason, gpus)
        return operation

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        self._journal.step_operation(operation, step.value, now)

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        self._journal.end_operation(operation, outcome.value, now, error)

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        self._journal.open_slice(job_id, gpus, now)

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        self._journal.close_slice(job_id, now, reason)

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        self._journal.record_event(now, job_id, None, kind, message)
