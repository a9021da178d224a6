# SPDX-License-Identifier: GPL-2.0-or-later
"""Save: a job's sessions write its state into its checkpoint store, and it goes on where it is. What it loses
with its node is what it has done since.

A suspended job gets no GPU for that: Slurm lets its processes run, and its sessions save from host memory.
"""

import logging

from controller.act.actions import Save
from controller.act.context import PLACE_RETRY_SECONDS, JobEnded, Operation
from controller.act.recorder import Step
from controller.act.resume import put_back, stays_off
from controller.act.store import cannot_write, write_to_store
from controller.act.suspend import pause
from controller.errors import GandivaError, NodeUnreachable
from controller.model import IN_HOST_MEMORY

log = logging.getLogger(__name__)


async def save(operation: Operation, _action: Save) -> None:
    """Whatever came of it, the job is at work as before, or off its GPUs as before."""
    context, job = operation.context, operation.job
    try:
        await into_store(operation)
    except GandivaError as failure:
        await not_saved(operation, failure)
        cannot_write(operation, failure, PLACE_RETRY_SECONDS)
        raise
    operation.step(Step.STOP if job.phase in IN_HOST_MEMORY else Step.NODE_RESUME)
    try:
        await _goes_on(operation)
    except GandivaError as failure:
        if await context.has_ended(job.id):
            raise JobEnded(f"job {job.id} ended while it was saved") from failure
        raise  # its phase is STUCK, YIELDED or UNKNOWN: the next cycle sees which


async def into_store(operation: Operation) -> None:
    """Once the job is where it can: all its ranks at one step, on its GPUs, or running off them."""
    context, job = operation.context, operation.job
    began = context.clock.now()
    if job.phase not in IN_HOST_MEMORY:
        operation.step(Step.PAUSE)
        await pause(context, job)
    elif context.suspends_in_slurm:
        operation.step(Step.SLURM_RESUME)
        await context.patiently(context.cluster.resume, job.id)
    await write_to_store(operation, began)


async def not_saved(operation: Operation, failure: GandivaError) -> None:
    """The job goes on as before, and for a while has no store: a file system may be full, say."""
    context, job = operation.context, operation.job
    await as_before(operation, failure)
    if not isinstance(failure, NodeUnreachable):
        until = context.clock.now() + context.alone_seconds(failure)
        context.memory.change(job.id).unsavable_until = until


async def as_before(operation: Operation, failure: GandivaError) -> None:
    """The job goes on where it is, or is off its GPUs as before: these may be another job's."""
    context, job = operation.context, operation.job
    context.ledger.stays(job.id)
    if await context.has_ended(job.id):
        raise JobEnded(f"job {job.id} ended while it was being saved") from failure
    operation.step(Step.UNDO)
    try:
        await _goes_on(operation)
    except GandivaError as undo_failure:
        # Requeued after all, or its phase is STUCK, YIELDED or UNKNOWN: the next cycle sees which.
        log.warning("job %s: not as before yet: %s", job.id, undo_failure)


async def _goes_on(operation: Operation) -> None:
    context, job = operation.context, operation.job
    if job.phase in IN_HOST_MEMORY:
        await stays_off(context, job)
    else:
        await put_back(context, job, job.placement.gpus, context.beside(job.id))
