# SPDX-License-Identifier: GPL-2.0-or-later
"""How long steps of operations, switches, waiting and cycles of the loop took."""

import logging
from dataclasses import dataclass

from controller.act.actions import Action
from controller.act.recorder import Outcome, Recorder, Step
from controller.journal import Journal
from controller.loop.loop import Cycle
from controller.model import GpuId, GpuSet, JobId, Moved, Phase
from controller.model.measures import Measures

_steps_log = logging.getLogger("controller.act")
_plan_log = logging.getLogger("controller.policies")


@dataclass(slots=True)
class _Open:
    job_id: JobId
    kind: str
    began: float
    step: Step | None = None
    step_began: float = 0.0
    failed_in: Step | None = None


class MeasuringRecorder(Recorder):
    def __init__(self, journal: Journal, measures: Measures) -> None:
        super().__init__(journal)
        self._measures = measures
        self._open: dict[int, _Open] = {}
        self._asked_at: dict[JobId, float] = {}
        self._on: dict[JobId, GpuSet] = {}
        self._left_at: dict[GpuId, float] = {}

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        number = super().operation_begins(action, gpus, now)
        self._open[number] = _Open(action.job_id, action.kind, now)
        self._asked_at[action.job_id] = now
        return number

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        super().operation_step(operation, step, now)
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
        super().operation_ends(operation, outcome, error, now)
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
        ended = f"{outcome.value} after {seconds:.3f} s" + (f": {error}" if error else "")
        _steps_log.debug("job %s: %s is %s", known.job_id, known.kind, ended, extra={"job": known.job_id})

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        super().slice_begins(job_id, gpus, now)
        self._on[job_id] = gpus
        asked_at = self._asked_at.get(job_id)
        for gpu in gpus:
            left_at = self._left_at.pop(gpu, None)
            # A GPU that came free before the job was to have it was idle, not between two jobs.
            if left_at is not None and asked_at is not None and asked_at <= left_at:
                self._measures.switch_gap(max(0.0, now - left_at))

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        super().slice_ends(job_id, reason, now)
        for gpu in self._on.pop(job_id, ()):
            self._left_at[gpu] = now

    def moved(self, moved: Moved, reason: str, now: float) -> None:
        super().moved(moved, reason, now)
        self._measures.move(moved.move, moved.verdict.value, moved.gain)


_WAITING = frozenset({Phase.QUEUED, Phase.STARTING})


class CycleMeter:
    """Measures every cycle of the loop, and how long jobs waited for their first start."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._waiting: set[JobId] = set()

    def completed(self, cycle: Cycle) -> None:
        """A cycle was completed. A job that was running when this controller started is not counted."""
        self._measures.cycle(cycle.observe_seconds, cycle.plan_seconds)
        if _plan_log.isEnabledFor(logging.DEBUG):
            _log_plan(cycle)
        jobs, changed = cycle.snapshot.jobs, cycle.snapshot.changed
        for job_id in {*jobs, *self._waiting} if changed.everything else changed.jobs:
            job = jobs.get(job_id)
            if job is not None and job.start_time is None and job.phase in _WAITING:
                self._waiting.add(job_id)
            elif job_id in self._waiting:
                self._waiting.discard(job_id)
                if job is not None and job.start_time is not None:
                    self._measures.queue_wait(max(0.0, job.start_time - job.submit_time))


def _log_plan(cycle: Cycle) -> None:
    jobs = cycle.snapshot.jobs
    _plan_log.debug(
        "cycle: %d jobs (%d in transition), %d targets, %d actions; observed in %.1f ms, decided in %.1f ms",
        len(jobs),
        sum(job.switching for job in jobs.values()),
        len(cycle.plan.targets),
        len(cycle.actions),
        cycle.observe_seconds * 1000,
        cycle.plan_seconds * 1000,
    )
    for action in cycle.actions:
        job_id = action.job_id
        _plan_log.debug("job %s: %s: %s", job_id, action.kind, action.reason, extra={"job": job_id})
