# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller can do to a job, and which actions turn a snapshot into a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from controller.frozen import quickly_made
from controller.model import (
    ALLOCATED,
    Assignment,
    GpuSet,
    Job,
    JobId,
    Phase,
    Plan,
    Snapshot,
    SuspendMethod,
    Unsuspendable,
)

# (Python 3.11 takes seven times as long to read these of their class, which is done for every job.)
_QUEUED, _STARTING, _RUNNING = Phase.QUEUED, Phase.STARTING, Phase.RUNNING


@quickly_made
@dataclass(frozen=True, slots=True)
class Place:
    """Bind a queued job and let Slurm start it."""

    job_id: JobId
    gpus: GpuSet
    binding: GpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Take a job off its GPUs and, in suspend mode `slurm`, suspend it in Slurm. Also completes a suspend
    that was cut short after the job had left its GPUs."""

    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a job go on, on these GPUs. Also puts right a job whose parts disagree (`Phase.STUCK`)."""

    job_id: JobId
    gpus: GpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Stop a job and put it back into the queue; it starts again from its own checkpoint."""

    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job for good: it cannot be suspended, and the site says so (`suspend.unsuspendable`)."""

    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back a release that nobody waits for any more (a controller died in between)."""

    job_id: JobId
    reason: str


Action: TypeAlias = Place | Suspend | Resume | Requeue | Cancel | Withdraw


def diff(
    snapshot: Snapshot,
    plan: Plan,
    *,
    suspend_in_slurm: bool,
    default_method: SuspendMethod,
    only: Iterable[JobId] | None = None,
) -> list[Action]:
    """The actions that lead from the snapshot to the plan, those that free GPUs first.

    Pure. Says nothing about jobs in transition, nor about jobs whose state is unknown. Every snapshot is
    compared afresh, so whatever was interrupted or undone behind our back is simply done again. `only`: the
    jobs that can need an action, where snapshot and plan say what changed.
    """
    frees: list[Action] = []
    claims: list[Action] = []
    if only is None:
        jobs: Iterable[Job] = snapshot.jobs.values()
    else:
        find = snapshot.jobs.get
        jobs = [job for job_id in sorted(only) if (job := find(job_id)) is not None]
    busy, assignments = snapshot.busy, plan.assignments
    for job in jobs:
        if job.id in busy:
            continue
        phase = job.phase
        if phase is _STARTING:
            frees.append(Withdraw(job.id, "stale release; job re-held"))
            continue
        if job.not_before is not None and job.not_before > snapshot.time:
            continue
        assignment = assignments.get(job.id)
        if phase is _QUEUED:
            if assignment is not None and assignment.run:
                reason = plan.reasons.get(job.id, "")
                claims.append(Place(job.id, assignment.gpus, assignment.binding, reason))
            continue
        if phase not in ALLOCATED:
            continue
        action = _allocated(job, assignment, plan.reasons, suspend_in_slurm, default_method)
        if isinstance(action, Suspend | Requeue | Cancel):
            frees.append(action)
        elif action is not None:
            claims.append(action)
    return frees + claims


def _allocated(
    job: Job,
    assignment: Assignment | None,
    reasons: Mapping[JobId, str],
    suspend_in_slurm: bool,
    default_method: SuspendMethod,
) -> Action | None:
    """The action for a job that Slurm has given GPUs."""
    if job.phase is _RUNNING:
        if assignment is None or (assignment.run and assignment.gpus == job.running_on):
            return None
        if not job.suspendable:
            return None
        reason = reasons.get(job.id, "")
        if job.failed_suspends is not None and job.way_out is not Unsuspendable.KEEP:
            if assignment.run:
                return None
            failed = job.failed_suspends
            words = f"it cannot be suspended (failed attempts: {failed.tries}): {failed.why}"
            return Cancel(job.id, words) if job.way_out is Unsuspendable.CANCEL else Requeue(job.id, words)
        words = reason if not assignment.run else f"moves to other GPUs of its server: {reason or 'its turn'}"
        if not assignment.run and (job.request.suspend or default_method) is SuspendMethod.REQUEUE:
            return Requeue(job.id, words)
        return Suspend(job.id, words)
    if job.phase is Phase.STUCK:
        # Its memory may be on its GPUs: no other job can have them, so it is resumed there.
        return Resume(job.id, job.running_on, "recovers an incomplete suspend or resume")
    if job.phase in (Phase.SUSPENDED, Phase.YIELDED):
        if assignment is not None and assignment.run:
            return Resume(job.id, assignment.gpus, reasons.get(job.id, ""))
        if job.phase is Phase.YIELDED and suspend_in_slurm:
            return Suspend(job.id, reasons.get(job.id) or "completes an interrupted suspend")
    return None
