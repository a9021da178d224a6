# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that Slurm takes for running or suspended while nothing of them is left on their node, or nothing that
could go on.

A node that lost power and is back soon forgets its jobs, and slurmctld does not hear of it before the node
registers anew, which can take minutes (docs/slurm-facts.md). Until then such a job holds GPUs that stand
idle, and cannot be put back onto them. So the controller requeues it, once its node has said for a while that
it has no control block of it, and then, asked for just that, that no process of it lives and that it was
booted since the job's start.

Without the boot nothing of this shows that a job was cut short: a slurmctld that was killed and is back with
an old state takes one that has just completed for running, which must not run again.

A job of which only the control block is missing goes on to its end. A trial that is stopped then was off its
GPUs: nobody can bring it back, and it is requeued, too.
"""

import asyncio
import logging
import math
from dataclasses import dataclass

from controller.cluster.port import ON_NODES, ClusterJob, JobState
from controller.errors import GandivaError
from controller.model import JobId
from controller.nodes.port import NodePort
from controller.observe.observer import Observer

log = logging.getLogger(__name__)

MISSING_SECONDS = 15.0
"""So long nothing was seen of a job before its node is asked: Slurm needs a moment after a job's end."""
ALIVE_SECONDS = 300.0
"""How often a node is asked again about a job of which only the control block is missing."""
ASK_SECONDS = 10.0

_Run = tuple[str, JobId, float | None]
"""A node, a job there, and its start: of another run of the job nothing follows for this one."""


@dataclass(slots=True)
class _Absence:
    ask_at: float
    asked: asyncio.Task[None] | None = None
    vanished: str = ""
    """Why it is to be requeued."""
    alive: bool = False


class VanishedJobs:
    """Watches for them, beside the loop: no cycle waits for a node."""

    def __init__(self, nodes: NodePort) -> None:
        self._nodes = nodes
        self._absent: dict[_Run, _Absence] = {}

    def look(self, observer: Observer, now: float) -> frozenset[JobId]:
        """After a snapshot. Jobs that can be neither suspended nor resumed, because a node shows nothing of
        them. Cost: jobs that were looked at, and those that are absent."""
        for job_id in observer.looked_at:
            job = observer.slurm.jobs.get(job_id)
            for run in () if job is None else _absent_from(job, observer):
                self._absent.setdefault(run, _Absence(now + MISSING_SECONDS))
        for run, absence in list(self._absent.items()):
            node, job_id, _ = run
            job, made = observer.slurm.jobs.get(job_id), observer.jobs.get(job_id)
            if job is None or run not in _absent_from(job, observer):
                if absence.asked is not None:
                    absence.asked.cancel()
                del self._absent[run]
            elif absence.asked is None and now >= absence.ask_at and not (made and made.switching):
                asking = self._ask(node, job, absence)
                absence.asked = asyncio.create_task(asking, name=f"living-{job_id}")
        return frozenset(job_id for (_, job_id, _), absence in self._absent.items() if not absence.alive)

    def found(self, observer: Observer) -> dict[JobId, str]:
        """Jobs that have vanished for certain and of which something can be done now, and why."""
        found: dict[JobId, str] = {}
        for (_, job_id, _), absence in sorted(self._absent.items(), key=lambda item: item[0][:2]):
            job = observer.jobs.get(job_id)
            if absence.vanished and job is not None and not job.switching and job.held_until is None:
                found.setdefault(job_id, absence.vanished)
        return found

    async def _ask(self, node: str, job: ClusterJob, absence: _Absence) -> None:
        """Sets `vanished`, or puts the matter off."""
        try:
            living = await self._nodes.living(node, job.id, deadline_seconds=ASK_SECONDS)
        except GandivaError as error:
            # Not known. An agent of an earlier release does not know the verb.
            log.info("job %s: not known whether it lives on %s: %s", job.id, node, error)
            absence.ask_at += MISSING_SECONDS
            return
        finally:
            absence.asked = None
        booted_since = job.start_time is not None and living.booted_at > job.start_time
        if living.processes == 0 and booted_since:
            absence.vanished = f"nothing of it is left on {node}, which has probably lost power"
        elif living.halted and job.state is JobState.RUNNING:
            absence.vanished = f"it is off its GPUs, and its control block on {node} is gone"
        if words := absence.vanished:
            log.warning("job %s (user %s): requeued: %s", job.id, job.user, words)
            absence.alive, absence.ask_at = False, math.inf
        else:
            absence.alive = True
            absence.ask_at += ALIVE_SECONDS


def _absent_from(job: ClusterJob, observer: Observer) -> list[_Run]:
    """Nodes that show nothing of a job which Slurm has there."""
    if job.state not in ON_NODES or job.exclusive_gpus:
        return []
    return [(node, job.id, job.start_time) for node in job.nodes if observer.nodes.says(node, job.id) is None]
