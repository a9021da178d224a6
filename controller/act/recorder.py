# SPDX-License-Identifier: GPL-2.0-or-later
"""What operations write down, and in which words."""

import enum

from controller.act.actions import Action
from controller.journal import Journal
from controller.model import GpuSet, JobId, Moved

SAVED_NOTE = "saved-seconds"
"""The name of the journal's notes on when jobs were saved."""


class Step(str, enum.Enum):
    """Every step an operation can be killed after. Journaled before it is taken."""

    CLAIM = "claim"
    PREPARE = "prepare"
    BIND = "bind"
    RELEASE = "release"
    AWAIT_START = "await-start"
    PAUSE = "pause"
    OFFLOAD = "offload"
    CHECKPOINT = "checkpoint"
    SAVE = "save"
    SLURM_SUSPEND = "slurm-suspend"
    STOP = "stop"
    SLURM_RESUME = "slurm-resume"
    NODE_RESUME = "node-resume"
    RESERVE = "reserve"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    UNDO = "undo"


class Outcome(str, enum.Enum):
    DONE = "done"
    FAILED = "failed"
    JOB_ENDED = "job-ended"


class Recorder:
    """Writes operations, slices and events into the journal as they happen."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        """Write the operation ahead, and the decision behind it. Returns an id for the other calls."""
        job_id, kind, reason = action.job_id, action.kind, action.reason
        self._journal.record_decision(now, job_id, kind, reason, gpus)
        return self._journal.begin_operation(job_id, kind, now, gpus, reason)

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        """Before the step is taken."""
        self._journal.step_operation(operation, step.value, now)

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        self._journal.end_operation(operation, outcome.value, now, error)

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        """The job may use these GPUs from now on."""
        self._journal.open_slice(job_id, gpus, now)

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        """It is known to have left them."""
        self._journal.close_slice(job_id, now, reason)

    def saved(self, job_id: JobId, ran_seconds: float, message: str, now: float) -> None:
        """Its state is in its checkpoint store, after so long on GPUs."""
        self.saves_from(job_id, ran_seconds)
        self.event("checkpointed", message, now, job_id)

    def saves_from(self, job_id: JobId, ran_seconds: float) -> None:
        """What it has done until then need not be saved any more."""
        self._journal.save_note(SAVED_NOTE, job_id, (ran_seconds,))

    def moved(self, moved: Moved, reason: str, now: float) -> None:
        kind = f"{moved.move}-{moved.verdict.value}"
        self._journal.record_event(now, moved.job_id, None, kind, reason, moved.gain)

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        """Something worth telling an operator."""
        self._journal.record_event(now, job_id, None, kind, message)
