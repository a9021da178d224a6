# SPDX-License-Identifier: GPL-2.0-or-later
"""Listening to the executor and to the loop: how long steps, switches and waiting took."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from controller.actions import Action
from controller.executor import Outcome, Recorder, Step
from controller.loop import Tick
from controller.model import GpuId, GpuSet, JobId, Phase
from controller.model.measures import Measures

_steps_log = logging.getLogger("controller.executor")
_plan_log = logging.getLogger("controller.policies")


@dataclass(slots=True)
class _Open:
    """An operation under way."""

    job_id: JobId
    kind: str
    began: float
    step: Step | None = None
    step_began: float = 0.0
    failed_in: Step | None = None


class MeasuringRecorder:
    """Passes everything on to another recorder, and tells the measures what it means."""

    def __init__(self, recorder: Recorder, measures: Measures) -> None:
        self._recorder = recorder
        self._measures = measures
        self._open: dict[int, _Open] = {}
        self._asked_at: dict[JobId, float] = {}
        self._on: dict[JobId, GpuSet] = {}
        self._left_at: dict[GpuId, float] = {}

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        number = self._recorder.operation_begins(action, gpus, now)
        self._open[number] = _Open(action.job_id, type(action).__name__.lower(), now)
        self._asked_at[action.job_id] = now
        return number

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        self._recorder.operation_step(operation, step, now)
        if (known := self._open.get(operation)) is None:
            return
        if known.step is not None:
            if step is Step.UNDO:
                known.failed_in = known.step
            else:
                self._measures.step(known.step.value, max(0.0, now - known.step_began))
        known.step, known.step_began = step, now
        _steps_log.debug("job %s: %s: %s", known.job_id, known.kind, step.value, extra={"job": known.job_id})

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        self._recorder.operation_ends(operation, outcome, error, now)
        if (known := self._open.pop(operation, None)) is None:
            return
        self._asked_at.pop(known.job_id, None)
        if outcome is Outcome.FAILED:
            if failed_in := known.failed_in or known.step:
                self._measures.step_failed(failed_in.value)
        elif outcome is Outcome.DONE and known.step is not None:
            self._measures.step(known.step.value, max(0.0, now - known.step_began))
        seconds = max(0.0, now - known.began)
        self._measures.operation(known.kind, outcome.value, seconds)
        _steps_log.debug(
            "job %s: %s is %s after %.3f s%s",
            known.job_id,
            known.kind,
            outcome.value,
            seconds,
            f": {error}" if error else "",
            extra={"job": known.job_id},
        )

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        self._recorder.slice_begins(job_id, gpus, now)
        self._on[job_id] = gpus
        asked_at = self._asked_at.get(job_id)
        for gpu in gpus:
            left_at = self._left_at.pop(gpu, None)
            # A GPU that was free before anybody wanted it was idle, not between two jobs.
            if left_at is not None and asked_at is not None and asked_at <= left_at:
                self._measures.switch_gap(max(0.0, now - left_at))

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        self._recorder.slice_ends(job_id, reason, now)
        for gpu in self._on.pop(job_id, ()):
            self._left_at[gpu] = now

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        self._recorder.event(kind, message, now, job_id)


_WAITING = frozenset({Phase.QUEUED, Phase.STARTING})


class TurnMeter:
    """Looks at every turn of the loop: its times, and the jobs that came onto GPUs for the first time."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._waiting: set[JobId] = set()

    def turned(self, tick: Tick) -> None:
        """A turn was completed. (A job that was running when this controller started is not counted.)"""
        self._measures.turn(tick.observe_seconds, tick.plan_seconds)
        if _plan_log.isEnabledFor(logging.DEBUG):
            _say_plan(tick)
        jobs = tick.snapshot.jobs
        for job_id in self._waiting:
            job = jobs.get(job_id)
            if job is not None and job.start_time is not None:
                self._measures.queue_wait(max(0.0, job.start_time - job.submit_time))
        self._waiting = {job.id for job in jobs.values() if job.start_time is None and job.phase in _WAITING}


def _say_plan(tick: Tick) -> None:
    """What was decided, and why."""
    _plan_log.debug(
        "turn: %d jobs (%d in transition), %d to run, %d actions; looked for %.1f ms, decided in %.1f ms",
        len(tick.snapshot.jobs),
        len(tick.snapshot.busy),
        sum(assignment.run for assignment in tick.plan.assignments.values()),
        len(tick.actions),
        tick.observe_seconds * 1000,
        tick.plan_seconds * 1000,
    )
    for action in tick.actions:
        kind = type(action).__name__.lower()
        _plan_log.debug("job %s: %s: %s", action.job_id, kind, action.reason, extra={"job": action.job_id})
