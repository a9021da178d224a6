# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs in the journal's file, what was decided about them and what happened."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable

from controller.journal.records import JobRecord, gpu_names, stored_text
from controller.journal.statements import BEGIN_AGAIN, DECISION, ENSURE_USAGE, EVENT, GONE, JOB
from controller.journal.store import Part, Store
from controller.model import GpuSet, JobId


class Jobs(Part):
    """`JournalPort` says what each call means."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._last_decision: dict[JobId, tuple[str, str, str]] = {}
        self._decided_in = store.generation

    def upsert_job(self, job: JobRecord) -> None:
        with self._store.lock:
            if job.end_time is not None:
                self._last_decision.pop(job.id, None)
            self._store.add(ENSURE_USAGE, job.id)
            self._store.add(
                JOB,
                job.id,
                stored_text(job.user),
                stored_text(job.account),
                stored_text(job.partition),
                stored_text(job.name),
                job.gpus,
                job.weight,
                job.submit_time,
                job.start_time,
                job.end_time,
                stored_text(job.state),
                json.dumps(dict(job.request), default=str),
                job.moves,
                job.suspends,
                job.step_seconds,
                job.exit_code,
                job.peak_memory_bytes,
                job.utilization_fraction,
            )

    def suspended(self) -> list[JobId]:
        rows = self._store.read("SELECT job_id FROM jobs WHERE state = 'SUSPENDED' ORDER BY job_id")
        return [JobId(job_id) for (job_id,) in rows]

    def submissions(self, job_ids: Iterable[JobId]) -> dict[JobId, tuple[str, float]]:
        # One JSON parameter, because SQLite bounds the number of parameters.
        rows = self._store.read(
            "SELECT job_id, user, submit FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(job_ids)),
        )
        return {JobId(job_id): (user, submit) for job_id, user, submit in rows}

    def begin_again(self, job_id: JobId) -> None:
        with self._store.lock:
            self._last_decision.pop(job_id, None)
            for statement in BEGIN_AGAIN:
                self._store.add(statement, job_id)

    def end_gone(self, present: Container[JobId], time: float) -> list[JobId]:
        with self._store.lock:
            rows = self._store.read("SELECT job_id FROM jobs WHERE end IS NULL ORDER BY job_id")
            gone = [JobId(job_id) for (job_id,) in rows if job_id not in present]
            for job_id in gone:
                self._store.add(GONE, time, job_id)
            return gone

    def record_decision(self, time: float, job_id: JobId, action: str, reason: str, gpus: GpuSet) -> None:
        decision = (action, stored_text(reason), gpu_names(gpus))
        with self._store.lock:
            if self._decided_in != self._store.generation:
                # A new file has none of them.
                self._decided_in, self._last_decision = self._store.generation, {}
            if self._last_decision.get(job_id) != decision:
                self._last_decision[job_id] = decision
                self._store.add(DECISION, time, job_id, *decision)

    def record_event(
        self, time: float, job_id: JobId | None, node: str | None, kind: str, message: str
    ) -> None:
        self._store.add(EVENT, time, job_id, node, stored_text(kind), stored_text(message))
