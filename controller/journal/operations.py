# SPDX-License-Identifier: GPL-2.0-or-later
"""Operations in the journal's file, written ahead: a controller killed in mid-switch finds out what it was
doing."""

from __future__ import annotations

import json
import time as clock

from controller.journal.file import Makeshift
from controller.journal.records import OpenOperation, stored_text
from controller.journal.statements import BEGIN, END, STEP
from controller.journal.store import Part
from controller.model import GpuSet, JobId


class Operations(Part):
    """`JournalPort` says what each call means."""

    _last_operation: int | None = None

    def new_operation_id(self) -> int:
        with self._store.lock:
            if self._last_operation is None:
                ((last,),) = self._store.read("SELECT coalesce(max(op_id), 0) FROM operations")
                # What cannot be read now may have any number up to some millions.
                unread = self._store.file.makeshift is Makeshift.MEMORY
                self._last_operation = int(clock.time() * 1000 if unread else last)
            self._last_operation += 1
            return self._last_operation

    def begin_operation(
        self, op_id: int, job_id: JobId, kind: str, time: float, gpus: GpuSet, reason: str
    ) -> None:
        detail = {"gpus": [str(gpu) for gpu in sorted(gpus)], "reason": stored_text(reason)}
        self._store.write_through(BEGIN, op_id, job_id, kind, time, json.dumps(detail))

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        self._store.write_through(STEP, step, time, op_id)

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        self._store.add(END, time, outcome, stored_text(error), op_id)

    def open_operations(self) -> list[OpenOperation]:
        rows = self._store.read(
            "SELECT op_id, job_id, kind, begin, step, step_time FROM operations WHERE end IS NULL "
            "ORDER BY begin, op_id"
        )
        return [OpenOperation(op_id, JobId(job_id), *values) for op_id, job_id, *values in rows]
