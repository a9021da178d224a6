# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor's recorder, writing to the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from controller.actions import Action
from controller.executor import Outcome, Step
from controller.journal import Journal
from controller.model import GpuSet, JobId


class JournalRecorder:
    """Operations, slices, decisions and events go into the journal as they happen."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kinds: dict[int, str] = {}
        self._counts: Counter[str] = Counter()

    @property
    def counters(self) -> Mapping[str, float]:
        """Operations since the start: `suspends`, `resumes`, …, and `suspend_failures`, …"""
        return MappingProxyType(dict(self._counts))

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        operation = self._journal.new_operation_id()
        kind = type(action).__name__.lower()
        names = [str(gpu) for gpu in sorted(gpus)]
        self._journal.begin_operation(
            operation, action.job_id, kind, now, {"gpus": names, "reason": action.reason}
        )
        self._kinds[operation] = kind
        self._journal.record_decision(now, action.job_id, kind, action.reason, gpus)
        return operation

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        self._journal.step_operation(operation, step.value, now)

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        kind = self._kinds.pop(operation, "")
        if outcome is Outcome.FAILED:
            self._counts[f"{kind}_failures"] += 1
        elif outcome is Outcome.DONE:
            self._counts[f"{kind}s"] += 1
        self._journal.end_operation(operation, outcome.value, now, error)

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        self._journal.open_slice(job_id, gpus, now)

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        self._journal.close_slice(job_id, now, reason)

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        self._journal.record_event(now, job_id, None, kind, message)
