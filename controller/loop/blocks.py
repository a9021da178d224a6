# SPDX-License-Identifier: GPL-2.0-or-later
"""Stale control blocks: of jobs that are over, or that were prepared on nodes they did not get.

Usually the epilog has removed them. A running job needs its block, so one look does not count: slurmctld may have
lost its memory, or answer with an old one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container

from controller.errors import GandivaError
from controller.model import JobId
from controller.nodes.port import NodePort, NodeSample
from controller.observe.observer import Observer
from controller.slurm.port import JobState

log = logging.getLogger(__name__)

STALE_SECONDS = 5.0
"""A block is removed when it was stale for so long."""

_Block = tuple[str, JobId]


class StaleBlocks:
    """Removes them, each in a task of its own: a turn waits for no node."""

    def __init__(self, nodes: NodePort) -> None:
        self._nodes = nodes
        self._since: dict[_Block, float] = {}
        self._removing: dict[_Block, asyncio.Task[None]] = {}

    def clean(self, observer: Observer, in_flight: Container[JobId], now: float) -> None:
        """After a turn. Blocks of jobs in transition are left alone."""
        stale = {block for block in self._stale(observer) if block[1] not in in_flight}
        self._since = {block: self._since.get(block, now) for block in stale}
        for block, since in self._since.items():
            if now - since >= STALE_SECONDS and block not in self._removing:
                name = f"forget-{block[1]}"
                self._removing[block] = asyncio.create_task(self._remove(*block), name=name)

    def _stale(self, observer: Observer) -> set[_Block]:
        found: set[_Block] = set()
        for name, sample in observer.nodes.samples.items():
            if not isinstance(sample, NodeSample):
                continue
            for job_id in sample.jobs:
                job = observer.slurm.jobs.get(job_id)
                gone = job is None or job.state is JobState.ENDED
                elsewhere = job is not None and bool(job.nodes) and name not in job.nodes
                if (gone or elsewhere) and not sample.living({job_id}):
                    found.add((name, job_id))
        return found

    async def _remove(self, node: str, job_id: JobId) -> None:
        try:
            await self._nodes.forget(node, job_id)
        except GandivaError as error:
            log.info("job %s: control block not removed: %s", job_id, error, extra={"node": node})
        finally:
            self._removing.pop((node, job_id), None)
