# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of a simulation: the same calls and the same answers as `Journal`, in memory."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

from controller.journal.records import Decision, Event, JobRecord, JobTotals, OpenOperation, Slice, merged
from controller.model import UNUSED, GpuSet, JobId, Note, Usage, reason_of


@dataclass(slots=True)
class Operation:
    """An operation from its begin to its end. `end` None: it is under way."""

    op_id: int
    job_id: JobId
    kind: str
    begin: float
    gpus: GpuSet
    reason: str
    step: str = ""
    step_time: float | None = None
    end: float | None = None
    outcome: str = ""
    error: str = ""


class MemoryJournal:
    """Has the calls of `Journal`. What was recorded can be read at any time; nothing is ever pruned or cut.

    State and notes are kept as JSON, so that what `Journal` would refuse raises TypeError here as well.
    """

    generation = 0

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.slices: list[Slice] = []
        """Closed ones, in the order of their ends."""
        self.operations: dict[int, Operation] = {}
        """By id, in the order of their begins."""
        self.decisions: list[Decision] = []
        self.events: list[Event] = []
        self._open: dict[JobId, GpuSet] = {}
        self._used: dict[JobId, Usage] = {}
        self._closed: Counter[JobId] = Counter()
        """How many slices of a job have ended."""
        self._last_decision: dict[JobId, tuple[str, str, GpuSet, str]] = {}
        self._state: dict[str, str] = {}
        self._notes: dict[str, dict[JobId, str]] = {}
        self._heartbeat: float | None = None
        self._last_operation = 0

    # -- state

    def load_state(self, key: str) -> Any:
        text = self._state.get(key)
        return None if text is None else json.loads(text)

    def save_state(self, key: str, value: Any) -> None:
        self._state[key] = json.dumps(value)

    def notes(self, policy: str) -> dict[JobId, Note]:
        noted = self._notes.get(policy, {})
        return {job_id: tuple(json.loads(text)) for job_id, text in noted.items() if not self._ended(job_id)}

    def save_note(self, policy: str, job_id: JobId, note: Note) -> None:
        noted = self._notes.setdefault(policy, {})
        if note is None:
            noted.pop(job_id, None)
        else:
            noted[job_id] = json.dumps(note)

    def last_heartbeat(self) -> float | None:
        return self._heartbeat

    def heartbeat(self, time: float) -> None:
        self._heartbeat = time

    # -- operations

    def new_operation_id(self) -> int:
        self._last_operation += 1
        return self._last_operation

    def begin_operation(
        self, op_id: int, job_id: JobId, kind: str, time: float, gpus: GpuSet, reason: str
    ) -> None:
        self.operations[op_id] = Operation(op_id, job_id, kind, time, gpus, reason)
        self._last_operation = max(self._last_operation, op_id)

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        operation = self.operations.get(op_id)
        if operation is not None:
            operation.step, operation.step_time = step, time

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        operation = self.operations.get(op_id)
        if operation is not None and operation.end is None:
            operation.end, operation.outcome, operation.error = time, outcome, error

    def open_operations(self) -> list[OpenOperation]:
        under_way = sorted(
            (o for o in self.operations.values() if o.end is None), key=lambda o: (o.begin, o.op_id)
        )
        return [OpenOperation(o.op_id, o.job_id, o.kind, o.begin, o.step, o.step_time) for o in under_way]

    # -- slices

    def open_slice(self, job_id: JobId, gpus: GpuSet, time: float) -> None:
        self.close_slice(job_id, time, "went on elsewhere")
        self._used[job_id] = self._used.get(job_id, UNUSED).started(time, len(gpus))
        self._open[job_id] = gpus

    def close_slice(self, job_id: JobId, time: float, reason: str) -> None:
        used = self._used.get(job_id, UNUSED)
        if used.since is None:
            return
        end = max(used.since, time)
        self.slices.append(Slice(job_id, self._open.pop(job_id), used.since, end, reason))
        self._used[job_id] = used.stopped(end)
        self._closed[job_id] += 1

    def open_places(self) -> dict[JobId, GpuSet]:
        return dict(self._open)

    def close_open_slices(self, time: float) -> list[JobId]:
        jobs = sorted(self._open)
        for job_id in jobs:
            self.close_slice(job_id, time, "the controller stopped")
        return jobs

    def carry_over(self, job_id: JobId, usage: Usage, time: float) -> None:
        if job_id in self._used:
            return
        ran = usage.since is not None or usage.idle_since is not None
        self._used[job_id] = Usage(
            seconds=usage.ran(time),
            gpu_seconds=usage.served(time),
            waited_seconds=usage.waited(time),
            idle_since=time if ran else None,
        )
        self._closed[job_id] = int(ran)

    def totals(self) -> dict[JobId, JobTotals]:
        return {job_id: self._totals(job_id) for job_id in self._used if not self._ended(job_id)}

    def _totals(self, job_id: JobId) -> JobTotals:
        used, job = self._used[job_id], self.jobs.get(job_id)
        waited = used.waited_seconds if self._heartbeat is None else used.waited(self._heartbeat)
        moves, suspends, utilization = (
            (job.moves, job.suspends, job.utilization_fraction) if job else (0, 0, None)
        )
        closed = self._closed[job_id]
        return JobTotals(used.seconds, used.gpu_seconds, waited, closed, moves, suspends, utilization)

    # -- jobs

    def _ended(self, job_id: JobId) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.end_time is not None

    def upsert_job(self, job: JobRecord) -> None:
        if job.end_time is not None:
            self._last_decision.pop(job.id, None)
        known = self.jobs.get(job.id)
        self.jobs[job.id] = job if known is None else merged(known, job)
        self._used.setdefault(job.id, UNUSED)

    def suspended(self) -> list[JobId]:
        return sorted(job.id for job in self.jobs.values() if job.state == "SUSPENDED")

    def submissions(self, job_ids: Iterable[JobId]) -> dict[JobId, tuple[str, float]]:
        known = (self.jobs[job_id] for job_id in job_ids if job_id in self.jobs)
        return {job.id: (job.user, job.submit_time) for job in known}

    def begin_again(self, job_id: JobId) -> None:
        tables: list[dict[JobId, Any]] = [
            self.jobs,
            self._used,
            self._closed,
            self._open,
            self._last_decision,
        ]
        for table in tables:
            table.pop(job_id, None)
        self.decisions = [decision for decision in self.decisions if decision.job_id != job_id]
        self.slices = [piece for piece in self.slices if piece.job_id != job_id]

    def end_gone(self, present: Container[JobId], time: float) -> list[JobId]:
        living = (job for job in self.jobs.values() if job.end_time is None)
        gone = sorted((job for job in living if job.id not in present), key=lambda job: job.id)
        for job in gone:
            self.jobs[job.id] = replace(job, end_time=time, state="UNKNOWN")
        return [job.id for job in gone]

    # -- decisions and events

    def record_decision(self, time: float, job_id: JobId, action: str, reason: str, gpus: GpuSet) -> None:
        decision = (action, reason, gpus, reason_of(reason).value)
        if self._last_decision.get(job_id) != decision:
            self._last_decision[job_id] = decision
            self.decisions.append(Decision(time, job_id, *decision))

    def record_event(
        self,
        time: float,
        job_id: JobId | None,
        node: str | None,
        kind: str,
        message: str,
        gain: float | None = None,
    ) -> None:
        self.events.append(Event(time, job_id, node, kind, message, gain))

    def commit(self) -> None:
        """Nothing waits to be written."""
