# SPDX-License-Identifier: GPL-2.0-or-later
"""What operations write down, and in which words."""

from __future__ import annotations

import enum
from typing import Protocol

from controller.act.actions import Action
from controller.model import GpuSet, JobId


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
    SLURM_SUSPEND = "slurm-suspend"
    STOP = "stop"
    SLURM_RESUME = "slurm-resume"
    NODE_RESUME = "node-resume"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    UNDO = "undo"


class Outcome(str, enum.Enum):
    """How an operation ended."""

    DONE = "done"
    FAILED = "failed"
    JOB_ENDED = "job-ended"


class Recorder(Protocol):
    """Where operations and slices are written down."""

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        """Returns an id for the other calls."""
        ...

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        """Before the step is taken."""
        ...

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        """It is over."""
        ...

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        """The job may use these GPUs from now on."""
        ...

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        """It is known to have left them."""
        ...

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        """Something worth telling an operator."""
        ...
