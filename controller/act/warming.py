# SPDX-License-Identifier: GPL-2.0-or-later
"""While a job leaves its node, the nodes that it migrates to read the files of its programs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from controller.act.site import NODE_CALL_SECONDS, Operation, gather
from controller.errors import NodeError
from controller.model import by_node

log = logging.getLogger(__name__)

WARM_SECONDS = 60.0


@contextlib.asynccontextmanager
async def warmed_up(operation: Operation) -> AsyncIterator[None]:
    """Beside what is done in it. Nothing waits for the nodes, and what fails costs time only."""
    task = asyncio.create_task(_warm_up(operation), name=f"warm-up-{operation.job.id}")
    try:
        yield
    finally:
        task.cancel()


async def _warm_up(operation: Operation) -> None:
    site, job = operation.site, operation.job
    here = by_node(job.placement.allocation)
    there = by_node(site.memory.of(job.id).promised).keys() - here.keys()
    if not there:
        return
    try:
        files = await site.nodes.mapped(min(here), job.id, deadline_seconds=NODE_CALL_SECONDS)
        await gather(
            site.nodes.warm(node, uid=job.uid, files=files, deadline_seconds=WARM_SECONDS)
            for node in sorted(there)
        )
    except NodeError as error:
        log.info("job %s: its programs are not read before it starts: %s", job.id, error)
