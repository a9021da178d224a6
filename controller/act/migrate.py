# SPDX-License-Identifier: GPL-2.0-or-later
"""Migrate: a job's sessions write its state into its checkpoint store, then Slurm has it in the queue again.
It starts from that generation on the GPUs that are promised to it.

A suspended job gets no GPU for that: Slurm lets its processes run, and its sessions save from host memory.
"""

import asyncio
import logging

from controller.act.actions import Migrate
from controller.act.context import NODE_CALL_SECONDS, PLACE_RETRY_SECONDS, JobEnded, Operation, gather
from controller.act.requeue import back_to_queue, reserve
from controller.act.save import as_before, into_store, not_saved
from controller.errors import GandivaError, NodeError
from controller.model import by_node

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
            await into_store(operation)
        finally:
            warming.cancel()
    except GandivaError as failure:
        await not_saved(operation, failure)
        message = f"does not migrate, and stays where it is: {failure}"
        context.hold(job.id, PLACE_RETRY_SECONDS, "migrate-failed", message)
        raise
    try:
        await back_to_queue(operation, action.reason, began)
    except GandivaError as failure:
        if not isinstance(failure, JobEnded):
            await as_before(operation, failure)
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
