# SPDX-License-Identifier: GPL-2.0-or-later
"""Time on GPUs in the journal's file."""

from __future__ import annotations

import logging

from controller.journal.records import JobTotals, gpu_names, gpu_set, stored_text
from controller.journal.state import State
from controller.journal.statements import (
    CARRY_OVER,
    CLOSE_SLICE,
    COUNT_SLICE,
    ENSURE_USAGE,
    OPEN_SLICE,
    PLACE,
)
from controller.model import GpuSet, JobId, Usage

log = logging.getLogger(__name__)


class Slices(State):
    """`JournalPort` says what each call means."""

    def open_slice(self, job_id: JobId, gpus: GpuSet, time: float) -> None:
        names = gpu_names(gpus)
        with self._store.lock:
            self.close_slice(job_id, time, "went on elsewhere")
            self._store.add(ENSURE_USAGE, job_id)
            self._store.add(OPEN_SLICE, job_id, names, len(gpus), time)
            self._store.add(PLACE, names, time, job_id)

    def close_slice(self, job_id: JobId, time: float, reason: str) -> None:
        with self._store.lock:
            self._store.add(COUNT_SLICE, time, time, time, job_id)
            self._store.add(CLOSE_SLICE, time, stored_text(reason), job_id)

    def open_places(self) -> dict[JobId, GpuSet]:
        places: dict[JobId, GpuSet] = {}
        for job_id, gpus in self._store.read("SELECT job_id, gpus FROM slices WHERE end IS NULL"):
            try:
                places[JobId(job_id)] = gpu_set(gpus)
            except (ValueError, AttributeError):
                log.error("journal %s: job %s: no GPUs: %.80r; left out", self._store.path, job_id, gpus)
        return places

    def close_open_slices(self, time: float) -> list[JobId]:
        with self._store.lock:
            rows = self._store.read("SELECT job_id FROM slices WHERE end IS NULL ORDER BY job_id")
            jobs = [JobId(job_id) for (job_id,) in rows]
            for job_id in jobs:
                self.close_slice(job_id, time, "the controller stopped")
            self._store.flush()
            return jobs

    def carry_over(self, job_id: JobId, usage: Usage, time: float) -> None:
        ran = usage.since is not None or usage.idle_since is not None
        used = (usage.ran(time), usage.served(time), int(ran))
        self._store.add(CARRY_OVER, job_id, *used, usage.waited(time), time if ran else None)

    def totals(self) -> dict[JobId, JobTotals]:
        seen = self.last_heartbeat()
        rows = self._store.read(
            "SELECT job_id, waited_seconds + max(0.0, coalesce(? - idle_since, 0.0)), run_seconds, "
            "gpu_seconds, slices, coalesce(moves, 0), coalesce(suspends, 0), utilization_fraction "
            "FROM usage LEFT JOIN jobs USING (job_id) WHERE end IS NULL",
            seen,
        )
        totals = {}
        for job_id, waited, run, gpu, slices, moves, suspends, utilization in rows:
            totals[JobId(job_id)] = JobTotals(
                run_seconds=run,
                gpu_seconds=gpu,
                waited_seconds=waited,
                slices=slices,
                moves=moves,
                suspends=suspends,
                utilization_fraction=utilization,
            )
        return totals
