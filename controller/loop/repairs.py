# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm and the nodes disagree about, and what is done or left undone because of it.

Jobs that have vanished (`observe/vanished.py`), holds that look like an administrator's (`observe/holds.py`),
and jobs that Slurm has as pending while their processes are on a node.

A slurmctld that is killed forgets the starts of its last moments. Releasing such a job once more would start
a second copy, which slurmd refuses ("Duplicate jobid"), and Slurm would drain the node. So it waits until
Slurm has found the first copy and ended it, which it does when the node registers anew.

Stale control blocks, of jobs that are over or that were prepared on nodes they did not get, are removed
(usually the epilog has done so). A running job needs its block, so one look does not count: slurmctld may
have lost its memory, or answer with an old one.
"""

import asyncio
import logging
from collections.abc import Container, Iterable

from controller.act.actions import Action, Place, Requeue, Withdraw
from controller.act.context import PLACE_RETRY_SECONDS, Context
from controller.cluster.port import JobState
from controller.errors import GandivaError
from controller.model import JobId, Reason, Why
from controller.nodes.port import NodePort
from controller.nodes.protocol import NodeJob
from controller.observe.holds import HoldRestorer
from controller.observe.observer import Observer
from controller.observe.vanished import VanishedJobs

log = logging.getLogger(__name__)

STALE_SECONDS = 5.0
"""A block is removed when it was stale for so long."""

_Block = tuple[str, JobId]


class Repairs:
    """Goes over the actions of a cycle."""

    def __init__(self, context: Context, suspended: Iterable[JobId]) -> None:
        """`suspended`: jobs that were suspended when an earlier controller saw them last."""
        self._context = context
        self._vanished = VanishedJobs(context.nodes)
        self._holds = HoldRestorer(suspended)

    def mend(self, actions: list[Action], observer: Observer, now: float) -> list[Action]:
        """Without actions that would do harm, and with those that put things right."""
        if out_of_reach := self._vanished.look(observer, now):
            actions = [action for action in actions if action.job_id not in out_of_reach]
            for job_id, words in self._vanished.found(observer).items():
                actions.append(Requeue(job_id, Why(Reason.REPAIRED, words)))
        for job_id in self._holds.look(observer, now):
            words = "restores the hold after requeue of a suspended job"
            actions.append(Withdraw(job_id, Why(Reason.REPAIRED, words)))
        placed = {action.job_id for action in actions if isinstance(action, Place)}
        showing = ((job_id, name) for job_id in placed for name in observer.nodes.showing(job_id))
        lives = observer.nodes.lives
        surviving = {job_id: name for job_id, name in sorted(showing, reverse=True) if lives(name, job_id)}
        for job_id, node in surviving.items():
            message = f"it waits, but its processes live on {node}: it is placed once they have ended"
            log.warning("job %s: %s", job_id, message)
            self._context.hold(job_id, PLACE_RETRY_SECONDS, "place-failed", message)
        return [action for action in actions if action.job_id not in surviving]


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
