# SPDX-License-Identifier: GPL-2.0-or-later
"""Resume: a suspended job goes on, on the same or other GPUs of its allocation."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller.act import residuals
from controller.act.actions import Resume
from controller.act.context import PLACE_RETRY_SECONDS, Context, JobEnded, Operation, put
from controller.act.recorder import Step
from controller.errors import GandivaError, NodeError, NodeUnreachable
from controller.model import GpuSet, Job, JobId, Phase, by_node

log = logging.getLogger(__name__)
T = TypeVar("T")

_STILL_OFF = frozenset({"gpu_busy", "unsupported"})
"""Errors after which the job is off its GPUs as before: they are not free, or it cannot move to them."""


async def resume(operation: Operation, action: Resume) -> None:
    """On failure the job stays off its GPUs where that is known; else its next phase shows where it is."""
    context, job = operation.context, operation.job
    operation.step(Step.CLAIM)
    beside = context.beside(job.id)
    await context.ledger.claim(job.id, action.gpus, beside)
    began = context.clock.now()
    try:
        residuals.require_room(job, action.gpus, context.seen, context.left)
    except NodeError as failure:
        context.hold(job.id, PLACE_RETRY_SECONDS, "resume-failed", str(failure))
        context.ledger.release(job.id)
        raise
    asked_at: float | None = None
    try:
        if context.suspends_in_slurm or job.phase is not Phase.YIELDED:
            operation.step(Step.SLURM_RESUME)
            seconds = context.settings.suspend.resume_deadline_seconds
            await put(context.nodes.open, job.id, action.gpus, job.placement.allocation, beside, seconds)
            await context.patiently(context.cluster.resume, job.id)
        operation.step(Step.NODE_RESUME)
        asked_at = context.clock.now()
        await put_back(context, job, action.gpus, beside)
    except GandivaError as failure:
        if await context.has_ended(job.id):
            context.ledger.release(job.id)
            raise JobEnded(f"job {job.id} ended while it was being resumed") from failure
        context.hold(job.id, PLACE_RETRY_SECONDS, "resume-failed", str(failure))
        if isinstance(failure, NodeUnreachable):
            context.memory.change(job.id).resumed_at = asked_at
        nowhere_back = asked_at is None or len(by_node(job.placement.allocation)) == 1
        if isinstance(failure, NodeError) and failure.kind in _STILL_OFF and nowhere_back:
            # A gang over several nodes may be back on some of them: it counts as STUCK and is tried again.
            operation.step(Step.UNDO)
            await stays_off(context, job)
            context.ledger.release(job.id)
        elif asked_at is None:
            # Slurm has resumed it or not: off its GPUs it can open none in either case.
            operation.step(Step.UNDO)
            with contextlib.suppress(GandivaError):
                await context.stop_processes(job)
        raise
    context.begin_slice(job.id, action.gpus, began)
    context.took(job, "restore", began)


async def stays_off(context: Context, job: Job) -> None:
    """The job, which is off its GPUs, is suspended as before."""
    if context.suspends_in_slurm:
        await context.patiently(context.cluster.suspend, job.id)
    await context.stop_processes(job)


async def put_back(context: Context, job: Job, gpus: GpuSet, beside: frozenset[JobId]) -> None:
    """The job's state returns to its GPUs on all nodes. `beside`: jobs that may have memory on them too."""
    allocation, seconds = job.placement.allocation, context.settings.suspend.resume_deadline_seconds
    await once_thawed(
        context, job, lambda: put(context.nodes.resume, job.id, gpus, allocation, beside, seconds)
    )


async def once_thawed(context: Context, job: Job, call: Callable[[], Awaitable[T]]) -> T:
    """A call that wants the job's processes to run."""
    try:
        return await call()
    except NodeError as failure:
        if failure.kind != "halted" or not context.suspends_in_slurm:
            raise
        # Slurm takes it for running and would not resume it, yet it is frozen: a slurmctld that was killed
        # forgets the suspends of its last seconds. Suspended once more, it can be resumed.
        message = f"{failure}; suspending and resuming it in Slurm once more"
        log.warning("job %s: %s", job.id, message)
        context.recorder.event("thawed", message, context.clock.now(), job.id)
        await context.patiently(context.cluster.suspend, job.id)
        await context.patiently(context.cluster.resume, job.id)
        return await call()
