# SPDX-License-Identifier: GPL-2.0-or-later
"""Migrate: a job's sessions write its state into its checkpoint store, then Slurm has it in the queue again.
It starts from that generation on the GPUs that are promised to it."""

import logging

from controller.act.actions import Migrate
from controller.act.recorder import Step
from controller.act.requeue import back_to_queue, reserve, reserve_later
from controller.act.resume import put_back
from controller.act.site import PLACE_RETRY_SECONDS, JobEnded, Operation
from controller.act.suspend import pause
from controller.act.warming import warmed_up
from controller.errors import GandivaError, NodeError, NodeUnreachable
from controller.nodes.protocol import Saved

log = logging.getLogger(__name__)


async def migrate(operation: Operation, action: Migrate) -> None:
    """Nothing is requeued before all its nodes say that one generation is published. On failure the job goes
    on where it is."""
    site, job = operation.site, operation.job
    reserved = await reserve(operation, action.reserve)
    began = site.clock.now()
    try:
        async with warmed_up(operation):
            saved = await _save(operation)
    except GandivaError as failure:
        await _goes_on(operation, failure)
        if not isinstance(failure, NodeUnreachable):
            # A full file system, say. Until then it leaves its GPUs as a job without a store does.
            pause_seconds = site.settings.suspend.retry_after_seconds
            site.memory.change(job.id).unsavable_until = site.clock.now() + pause_seconds
        message = f"does not migrate, and stays where it is: {failure}"
        site.hold(job.id, PLACE_RETRY_SECONDS, "migrate-failed", message)
        raise
    message = f"step {saved.step} is generation {saved.generation} of its checkpoint store"
    site.recorder.event("checkpointed", message, site.clock.now(), job.id)
    try:
        await back_to_queue(operation, action.reason, began)
    except GandivaError as failure:
        if not isinstance(failure, JobEnded):
            await _goes_on(operation, failure)
        raise
    if not reserved:
        await reserve_later(operation, action.reserve)


async def _save(operation: Operation) -> Saved:
    """What all its nodes say. Raises NodeError."""
    site, job = operation.site, operation.job
    operation.step(Step.PAUSE)
    await pause(site, job)
    operation.step(Step.SAVE)
    seconds = site.settings.suspend.save_deadline_seconds
    answers = await site.on_nodes(job, lambda node: site.nodes.save(node, job.id, deadline_seconds=seconds))
    found = {(answer.step, answer.generation) for answer in answers.values()}
    if len(found) != 1:
        node = min(answers)
        raise NodeError(
            node, "not_cooperative", f"job {job.id}: nodes saved different things: {sorted(found)}"
        )
    return next(iter(answers.values()))


async def _goes_on(operation: Operation, failure: GandivaError) -> None:
    """The job goes on where it is."""
    site, job = operation.site, operation.job
    site.ledger.stays(job.id)
    if await site.has_ended(job.id):
        raise JobEnded(f"job {job.id} ended while it was to migrate") from failure
    operation.step(Step.UNDO)
    try:
        await put_back(site, job, job.placement.gpus, site.beside(job.id))
    except GandivaError as undo_failure:
        # Requeued after all, or its phase is STUCK or UNKNOWN: the next turn sees which, and acts on it.
        log.warning("job %s: not back at work yet: %s", job.id, undo_failure)
