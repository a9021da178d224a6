# SPDX-License-Identifier: GPL-2.0-or-later
"""Stale control blocks: of jobs that are over, or that were prepared on nodes they did not get.

Usually the epilog has removed them. A running job needs its block, so one look does not count: slurmctld may
have lost its memory, or answer with an old one.
"""

import asyncio
import logging
from collections.abc import Container

from controller.errors import GandivaError
from controller.model import JobId
from controller.nodes.port import NodePort
from controller.nodes.protocol import NodeJob
from controller.observe.observer import Observer
from controller.slurm.port import JobState

log = logging.getLogger(__name__)

STALE_SECONDS = 5.0
"""A block is removed when it was stale for so long."""

_Block = tuple[str, JobId]


class StaleBlocks:
    """Removes them, each in a task of its own: a cycle waits for no node."""

    def __init__(self, nodes: NodePort) -> None:
        self._nodes = nodes
        self._since: dict[_Block, float] = {}
        self._removing: dict[_Block, asyncio.Task[None]] = {}

    def clean(self, observer: Observer, in_flight: Container[JobId], now: float) -> None:
        """After a cycle. Blocks of jobs in transition, and of jobs with processes there, are left alone."""
        for job_id in observer.looked_at:
            for name in observer.nodes.showing(job_id):
                if _needless(name, job_id, observer):
                    self._since.setdefault((name, job_id), now)
        for block, since in list(self._since.items()):
            name, job_id = block
            if not _needless(name, job_id, observer):
                del self._since[block]
            elif job_id in in_flight or observer.nodes.lives(name, job_id):
                self._since[block] = now
            elif now - since >= STALE_SECONDS and block not in self._removing:
                removing = asyncio.create_task(self._remove(name, job_id), name=f"forget-{job_id}")
                self._removing[block] = removing

    async def _remove(self, node: str, job_id: JobId) -> None:
        try:
            await self._nodes.forget(node, job_id)
        except GandivaError as error:
            log.info("job %s: control block not removed: %s", job_id, error, extra={"node": node})
        finally:
            self._removing.pop((node, job_id), None)


def _needless(node: str, job_id: JobId, observer: Observer) -> bool:
    """Whether there is a control block that no job needs, as far as Slurm knows."""
    if not isinstance(observer.nodes.says(node, job_id), NodeJob):
        return False
    job = observer.slurm.jobs.get(job_id)
    return job is None or job.state is JobState.ENDED or (bool(job.nodes) and node not in job.nodes)
