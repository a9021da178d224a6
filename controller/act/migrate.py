# SPDX-License-Identifier: GPL-2.0-or-later
"""Migrate: a job's sessions write its state into its checkpoint store, then Slurm has it in the queue again.
It starts from that generation on the GPUs that are promised to it.

A suspended job gets no GPU for that: Slurm lets its processes run, and its sessions save from host memory.
"""

import asyncio
import logging

from controller.act.actions import Migrate
from controller.act.context import NODE_CALL_SECONDS, PLACE_RETRY_SECONDS, JobEnded, Operation, gather
from controller.act.recorder import Step
from controller.act.requeue import back_to_queue, reserve
from controller.act.resume import once_thawed, put_back, stays_off
from controller.act.suspend import pause
from controller.errors import GandivaError, NodeError, NodeUnreachable
from controller.model import IN_HOST_MEMORY, by_node
from controller.nodes.protocol import Saved

log = logging.getLogger(__name__)

WARM_SECONDS = 60.0


async def migrate(operation: Operation, action: Migrate) -> None:
    """Nothing is requeued before all its nodes say that one generation is published. On failure the job goes
    on where it is, or stays off its GPUs."""
    context, job = operation.context, operation.job
    reserved = await reserve(operation, action.reserve)
    began = context.clock.now()
    # While the job leaves its node, the nodes that it migrates to read the files of its programs. Nothing
    # waits for these nodes, and what fails costs time only.
    warming = asyncio.create_task(_warm_up(operation), name=f"warm-up-{job.id}")
    try:
        try:
            saved = await _save(operation)
        finally:
            warming.cancel()
    except GandivaError as failure:
        await _as_before(operation, failure)
        if not isinstance(failure, NodeUnreachable):
            # A full file system, say. Until then it leaves its GPUs as a job without a store does.
            until = context.clock.now() + context.alone_seconds(failure)
            context.memory.change(job.id).unsavable_until = until
        message = f"does not migrate, and stays where it is: {failure}"
        context.hold(job.id, PLACE_RETRY_SECONDS, "migrate-failed", message)
        raise
    message = f"step {saved.step} is generation {saved.generation} of its checkpoint store"
    context.recorder.event("checkpointed", message, context.clock.now(), job.id)
    try:
        await back_to_queue(operation, action.reason, began)
    except GandivaError as failure:
        if not isinstance(failure, JobEnded):
            await _as_before(operation, failure)
        raise
    if not reserved:
        await reserve(operation, action.reserve, has_left=True)


async def _warm_up(operation: Operation) -> None:
    context, job = operation.context, operation.job
    here = by_node(job.placement.allocation)
    there = by_node(context.memory.of(job.id).promised).keys() - here.keys()
    if not there:
        return
    try:
        files = await context.nodes.mapped(min(here), job.id, deadline_seconds=NODE_CALL_SECONDS)
        await gather(
            context.nodes.warm(node, uid=job.uid, files=files, deadline_seconds=WARM_SECONDS)
            for node in sorted(there)
        )
    except NodeError as error:
        log.info("job %s: its programs are not read before it starts: %s", job.id, error)


async def _save(operation: Operation) -> Saved:
    """Once the job is where it can: all its ranks at one step, on its GPUs, or running off them."""
    context, job = operation.context, operation.job
    if job.phase not in IN_HOST_MEMORY:
        operation.step(Step.PAUSE)
        await pause(context, job)
    elif context.suspends_in_slurm:
        operation.step(Step.SLURM_RESUME)
        await context.patiently(context.cluster.resume, job.id)
    operation.step(Step.SAVE)
    seconds = context.settings.suspend.save_deadline_seconds
    answers = await once_thawed(
        context,
        job,
        lambda: context.on_nodes(
            job, lambda node: context.nodes.save(node, job.id, deadline_seconds=seconds)
        ),
    )
    found = {(answer.step, answer.generation) for answer in answers.values()}
    if len(found) != 1:
        words = f"job {job.id}: nodes saved different things: {sorted(found)}"
        raise NodeError(min(answers), "not_cooperative", words)
    return next(iter(answers.values()))


async def _as_before(operation: Operation, failure: GandivaError) -> None:
    """The job goes on where it is, or is off its GPUs as before: these may be another job's."""
    context, job = operation.context, operation.job
    context.ledger.stays(job.id)
    if await context.has_ended(job.id):
        raise JobEnded(f"job {job.id} ended while it was to migrate") from failure
    operation.step(Step.UNDO)
    try:
        if job.phase in IN_HOST_MEMORY:
            await stays_off(context, job)
        else:
            await put_back(context, job, job.placement.gpus, context.beside(job.id))
    except GandivaError as undo_failure:
        # Requeued after all, or its phase is STUCK, YIELDED or UNKNOWN: the next cycle sees which.
        log.warning("job %s: not as before yet: %s", job.id, undo_failure)
