# SPDX-License-Identifier: GPL-2.0-or-later
"""The writing side of the journal.

Calls only queue rows; `commit()`, once per cycle of the loop, writes them in one transaction. Two kinds of
call write through at once: those that begin or advance an operation, which must be on disk before the
controller acts, and those that read.
"""

from __future__ import annotations

import json
import logging
import time as clock
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from controller.errors import JournalError
from controller.journal import statements as sql
from controller.journal.damage import parsed
from controller.journal.lock import JournalLock
from controller.journal.records import (
    RECORD_FIELDS,
    JobRecord,
    JobTotals,
    OpenOperation,
    gpu_names,
    gpu_set,
    stored_text,
)
from controller.journal.store import Store
from controller.model import GpuSet, JobId, Note, Usage, reason_of

log = logging.getLogger(__name__)

PRUNE_ROWS = 4000
"""Old rows deleted at once per table at most, so that no cycle is long."""
PRUNE_INTERVAL_SECONDS = 60.0
_ENCODER = json.JSONEncoder(default=str)


class Journal(Store):
    """The one writer of a journal's file. Safe to call from several threads.

    Calls that record only queue what they are given, until `commit`. Reading sees what is queued. Reading and
    `commit` raise JournalError where the journal cannot be read or written; what is queued stays queued then.
    Times are seconds since the epoch; in a simulation, virtual seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_days: float = 90.0,
        detail_days: float = 14.0,
        lock: JournalLock | None = None,
    ) -> None:
        """Ended jobs are kept for `retention_days`; slices, decisions and events for `detail_days`.

        `lock`: taken already; given back by `close`. Raises JournalError: another process writes this
        journal, or the file cannot be opened.
        """
        self._leading = lock or _taken(path)
        try:
            super().__init__(path)
        except BaseException:
            self._leading.release()
            raise
        self.retention_days = retention_days
        self.detail_days = detail_days
        self._next_prune = 0.0
        self._last_operation: int | None = None
        self._last_decision: dict[JobId, tuple[str, str, str, str]] = {}
        self._decided_in = self.generation

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._leading.release()

    # -- state

    def load_state(self, key: str) -> Any:
        """The value saved under this name, or None."""
        rows = self.read("SELECT value FROM state WHERE key = ?", key)
        return parsed(rows[0][0], self.path, f"state {key}") if rows else None

    def save_state(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name, instead of the one before. Raises TypeError: not JSON."""
        self.add(sql.STATE, key, json.dumps(value))

    def notes(self, policy: str) -> dict[JobId, Note]:
        """What was saved of jobs that have not ended. `policy`: its name, or that of a part of the loop."""
        rows = self.read(
            "SELECT job_id, note FROM notes LEFT JOIN jobs USING (job_id) WHERE policy = ? AND end IS NULL",
            policy,
        )
        found = ((JobId(i), parsed(text, self.path, f"note on job {i}")) for i, text in rows)
        return {job_id: tuple(note) for job_id, note in found if isinstance(note, list)}

    def save_note(self, policy: str, job_id: JobId, note: Note) -> None:
        """What it remembers of a job from now on; None: nothing. Raises TypeError: not JSON."""
        if note is None:
            self.add(sql.NO_NOTE, policy, job_id)
        else:
            self.add(sql.NOTE, policy, job_id, json.dumps(note))

    def last_heartbeat(self) -> float | None:
        """When a controller was last known to be alive. None in a new journal."""
        value = self.load_state("heartbeat")
        return float(value) if isinstance(value, int | float) else None

    def heartbeat(self, time: float) -> None:
        """The controller is alive. Once per cycle. Also deletes what is old, a little at a time."""
        with self.lock:
            self.save_state("heartbeat", time)
            if time >= self._next_prune:
                self._next_prune = time + PRUNE_INTERVAL_SECONDS
                for statement, row in sql.pruning(time, self.retention_days, self.detail_days, PRUNE_ROWS):
                    self.add(statement, *row)

    # -- operations

    def begin_operation(self, job_id: JobId, kind: str, time: float, gpus: GpuSet, reason: str) -> int:
        """The controller is about to do this. On disk when it returns, unless the disk takes nothing. Returns
        a number that no other operation in this journal has."""
        detail = {"gpus": [str(gpu) for gpu in sorted(gpus)], "reason": stored_text(reason)}
        with self.lock:
            if self._last_operation is None:
                ((last,),) = self.read("SELECT coalesce(max(op_id), 0) FROM operations")
                # What cannot be read now may have any number up to some millions.
                self._last_operation = int(clock.time() * 1000) if self.file.is_unread else last
            self._last_operation += 1
            self.write_through(sql.BEGIN, self._last_operation, job_id, kind, time, json.dumps(detail))
            return self._last_operation

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        """This step is about to be taken. On disk when it returns, unless the disk takes nothing."""
        self.write_through(sql.STEP, step, time, op_id)

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        """The operation is over. Nothing happens where it was over before."""
        self.add(sql.END, time, outcome, stored_text(error), op_id)

    def open_operations(self) -> list[OpenOperation]:
        """Operations that were begun and never ended, oldest first."""
        rows = self.read(
            "SELECT op_id, job_id, kind, begin, step, step_time FROM operations WHERE end IS NULL "
            "ORDER BY begin, op_id"
        )
        return [OpenOperation(op_id, JobId(job_id), *values) for op_id, job_id, *values in rows]

    # -- slices

    def open_slice(self, job_id: JobId, gpus: GpuSet, time: float) -> None:
        """The job is on these GPUs from now on. A slice that is still open ends here."""
        names = gpu_names(gpus)
        with self.lock:
            self.close_slice(job_id, time, "went on elsewhere")
            self.add(sql.ENSURE_USAGE, job_id)
            self.add(sql.OPEN_SLICE, job_id, names, len(gpus), time)
            self.add(sql.PLACE, names, time, job_id)

    def close_slice(self, job_id: JobId, time: float, reason: str) -> None:
        """The job is off its GPUs; its totals grow by the slice. Nothing happens where none is open."""
        with self.lock:
            self.add(sql.COUNT_SLICE, time, time, time, job_id)
            self.add(sql.CLOSE_SLICE, time, stored_text(reason), job_id)

    def close_open_slices(self, time: float) -> dict[JobId, GpuSet]:
        """At start: end the slices that a killed controller left open, at its last heartbeat, so that no time
        counts that was not observed. Returns the jobs, by id, with the GPUs that they were on."""
        places: dict[JobId, GpuSet] = {}
        with self.lock:
            for job_id, gpus in self.read(
                "SELECT job_id, gpus FROM slices WHERE end IS NULL ORDER BY job_id"
            ):
                self.close_slice(job_id, time, "the controller stopped")
                try:
                    places[job_id] = gpu_set(gpus)
                except (ValueError, AttributeError):
                    log.error("journal %s: job %s: no GPUs: %.80r; left out", self.path, job_id, gpus)
                    places[job_id] = frozenset()
            self.flush()
        return places

    def carry_over(self, job_id: JobId, usage: Usage, time: float) -> None:
        """Into a new file: what a living job has used up to now. Counts as one slice without details. Nothing
        happens where the file has totals of the job."""
        ran = usage.since is not None or usage.idle_since is not None
        used = (usage.ran(time), usage.served(time), int(ran))
        self.add(sql.CARRY_OVER, job_id, *used, usage.waited(time), time if ran else None)

    def totals(self) -> dict[JobId, JobTotals]:
        """What all jobs that have not ended have used so far, closed slices only."""
        seen = self.last_heartbeat()
        rows = self.read(
            "SELECT job_id, run_seconds, gpu_seconds, "
            "waited_seconds + max(0.0, coalesce(? - idle_since, 0.0)), slices, coalesce(moves, 0), "
            "coalesce(suspends, 0), utilization_fraction "
            "FROM usage LEFT JOIN jobs USING (job_id) WHERE end IS NULL",
            seen,
        )
        return {JobId(job_id): JobTotals(*figures) for job_id, *figures in rows}

    # -- jobs, decisions and events

    def upsert_job(self, job: JobRecord) -> None:
        """A job is new or has changed. `statements.JOB` says what stays of an earlier record."""
        with self.lock:
            if job.end_time is not None:
                self._last_decision.pop(job.id, None)
            self.add(sql.ENSURE_USAGE, job.id)
            self.add(sql.JOB, *(_stored(getattr(job, name)) for name in RECORD_FIELDS))

    def suspended(self) -> list[JobId]:
        """Jobs that were suspended in Slurm when they were last seen, by id."""
        rows = self.read("SELECT job_id FROM jobs WHERE state = 'SUSPENDED' ORDER BY job_id")
        return [JobId(job_id) for (job_id,) in rows]

    def submissions(self, job_ids: Iterable[JobId]) -> dict[JobId, tuple[str, float]]:
        """User and submit time of those of these jobs that are recorded."""
        # One JSON parameter, because SQLite bounds the number of parameters.
        rows = self.read(
            "SELECT job_id, user, submit FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(job_ids)),
        )
        return {JobId(job_id): (user, submit) for job_id, user, submit in rows}

    def begin_again(self, job_id: JobId) -> None:
        """The next record of this id is of another job: Slurm gave the id out again. What is recorded of the
        earlier job is dropped, as `sacct` shows the newest job of an id alone. Notes stay: only those who
        save them know whether they still hold."""
        with self.lock:
            self._last_decision.pop(job_id, None)
            for statement in sql.BEGIN_AGAIN:
                self.add(statement, job_id)

    def end_gone(self, present: Container[JobId], time: float) -> list[JobId]:
        """At start: jobs whose end was never recorded and that Slurm does not know any more end now, in state
        UNKNOWN. Returns them, by id."""
        with self.lock:
            rows = self.read("SELECT job_id FROM jobs WHERE end IS NULL ORDER BY job_id")
            gone = [JobId(job_id) for (job_id,) in rows if job_id not in present]
            for job_id in gone:
                self.add(sql.GONE, time, job_id)
            return gone

    def record_decision(self, time: float, job_id: JobId, action: str, reason: str, gpus: GpuSet) -> None:
        """A decision and why. The same decision twice in a row is recorded once."""
        decision = (action, stored_text(reason), gpu_names(gpus), reason_of(reason).value)
        with self.lock:
            if self._decided_in != self.generation:
                # A new file has none of them.
                self._decided_in, self._last_decision = self.generation, {}
            if self._last_decision.get(job_id) != decision:
                self._last_decision[job_id] = decision
                self.add(sql.DECISION, time, job_id, *decision)

    def record_event(
        self,
        time: float,
        job_id: JobId | None,
        node: str | None,
        kind: str,
        message: str,
        gain: float | None = None,
    ) -> None:
        """Something that happened to the controller, a node or a job, and is not a decision. `gain`: what was
        measured of a move."""
        self.add(sql.EVENT, time, job_id, node, stored_text(kind), stored_text(message), gain)


def _stored(value: object) -> object:
    if isinstance(value, Mapping):
        return _ENCODER.encode(dict(value))
    return stored_text(value) if isinstance(value, str) else value


def _taken(path: Path) -> JournalLock:
    """Two controllers on one cluster would undo each other's work: the second is refused here."""
    lock = JournalLock(path)
    if not lock.take():
        raise JournalError(f"another controller (pid {lock.holder}) uses the journal {path}: stop it first")
    return lock
