# SPDX-License-Identifier: GPL-2.0-or-later
"""Resize: a running job goes on with another number of GPUs of its allocation (SPEC 1.6).

Its state goes to host memory and comes back on the other GPUs. Slurm is not asked: the job runs there all the
time, and its allocation has the old GPUs and the new ones. The old ones are its own until it is known to work
on the new ones, so that every failure is undone by putting it back.
"""

import logging

from controller.act import residuals
from controller.act.actions import Resize
from controller.act.context import PLACE_RETRY_SECONDS, JobEnded, Operation
from controller.act.place import names
from controller.act.recorder import Step
from controller.act.resume import put_back
from controller.act.suspend import leave_together
from controller.errors import GandivaError, NodeUnreachable

log = logging.getLogger(__name__)


async def resize(operation: Operation, action: Resize) -> None:
    """On failure the job goes on as it was, where that is known; else its next phase shows where it is."""
    context, job = operation.context, operation.job
    old, new, beside = job.placement.gpus, action.gpus, context.beside(job.id)
    if old - new:
        context.ledger.leaving(job.id)
    operation.step(Step.CLAIM)
    await context.ledger.claim(job.id, new, beside)
    began, asked_at, left_at = context.clock.now(), None, None
    try:
        residuals.require_room(job, new - old, context.seen, context.left)
        await leave_together(operation)
        operation.step(Step.STOP)
        await context.stop_processes(job)
        left_at = context.clock.now()
        context.end_slice(job.id, action.reason, began, left_at)
        operation.step(Step.NODE_RESUME)
        asked_at = context.clock.now()
        await put_back(context, job, new, beside)
    except GandivaError as failure:
        if await context.has_ended(job.id):
            if left_at is not None:
                context.ledger.release(job.id)  # else it may be on its GPUs still: the next snapshot says
            raise JobEnded(f"job {job.id} ended while it changed its size") from failure
        message = f"change from {names(old)} to {names(new)} failed: {failure}"
        context.hold(job.id, PLACE_RETRY_SECONDS, "resize-failed", message)
        if left_at is None:
            # It did not get off its GPUs: as after a failed suspend.
            until = context.clock.now() + context.alone_seconds(failure)
            context.memory.change(job.id).unsuspendable_until = until
        log.warning("job %s (user %s): %s", job.id, job.user, message)
        if asked_at is not None and isinstance(failure, NodeUnreachable):
            # It may be on the new GPUs: what is observed of it next decides.
            context.memory.change(job.id).resumed_at = asked_at
            raise
        operation.step(Step.UNDO)
        await put_back(context, job, old, beside)
        if left_at is not None:
            context.begin_slice(job.id, old, began)
        context.ledger.keep(job.id, old)
        raise
    context.ledger.keep(job.id, new)
    context.begin_slice(job.id, new, began)
    context.took(job, "restore", began)
