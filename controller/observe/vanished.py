# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that Slurm takes for running or suspended while nothing of them is left on their node.

A node that lost power and is back soon forgets its jobs, and slurmctld does not hear of it before the node
registers anew, which can take minutes (docs/slurm-facts.md). Until then such a job holds GPUs that stand
idle, and cannot be put back onto them. So it is requeued by us, once its node has said for a while that it
has no control block of it, and then, asked for just that, that no process of it lives and that it was booted
since the job's start.

Without the boot nothing of this shows that a job was cut short: a slurmctld that was killed and is back with
an old state takes one that has just completed for running, which must not run again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

from controller.actions import Requeue
from controller.errors import GandivaError, NodeError
from controller.model import JobId, Snapshot
from controller.nodes.port import NodePort, NodeSample
from controller.slurm.port import ClusterView, JobState, SlurmJob

log = logging.getLogger(__name__)

LOST_SECONDS = 15.0
"""So long nothing was seen of a job before its node is asked what lives. Slurm itself needs a moment after
the end of a job, or after a node has come back."""
ALIVE_SECONDS = 300.0
"""How often a node is asked again about a job that has lost only its control block."""
ASK_SECONDS = 10.0

_THERE = (JobState.RUNNING, JobState.SUSPENDED)
_Run = tuple[str, JobId, float | None]
"""A node, a job there, and its start: of another run of the job nothing follows for this one."""


@dataclass(slots=True)
class _Absence:
    """What is known of a job that a node shows nothing of."""

    ask_at: float
    asked: asyncio.Task[None] | None = None
    lost: bool = False
    alive: bool = False


class Lost:
    """Watches for them, beside the loop: no turn waits for a node."""

    def __init__(self, nodes: NodePort) -> None:
        self._nodes = nodes
        self._absent: dict[_Run, _Absence] = {}

    def look(
        self,
        view: ClusterView,
        samples: Mapping[str, NodeSample | NodeError],
        in_flight: Set[JobId],
        now: float,
    ) -> frozenset[JobId]:
        """Jobs that can be neither suspended nor resumed, because a node shows nothing of them.

        Needs a complete view; from a partial one nothing follows. Cost: O(jobs x their nodes).
        """
        if view.partial:
            return frozenset()
        absent: dict[_Run, _Absence] = {}
        for job in view.jobs:
            if job.state not in _THERE or job.exclusive_gpus:
                continue
            for node in job.nodes:
                sample = samples.get(node)
                if not isinstance(sample, NodeSample) or job.id in sample.jobs:
                    continue
                key = (node, job.id, job.start_time)
                absence = absent[key] = self._absent.get(key) or _Absence(now + LOST_SECONDS)
                if absence.asked is None and now >= absence.ask_at and job.id not in in_flight:
                    absence.asked = asyncio.create_task(
                        self._ask(node, job, absence), name=f"living-{job.id}"
                    )
        for key, absence in self._absent.items():
            if key not in absent and absence.asked is not None:
                absence.asked.cancel()
        self._absent = absent
        return frozenset(job_id for (_, job_id, _), absence in absent.items() if not absence.alive)

    def actions(self, snapshot: Snapshot) -> list[Requeue]:
        """What gets those back to work that are lost for certain."""
        found: dict[JobId, str] = {}
        for (node, job_id, _), absence in self._absent.items():
            job = snapshot.jobs.get(job_id)
            if not absence.lost or job is None or job_id in snapshot.busy:
                continue
            if job.not_before is None or job.not_before <= snapshot.time:
                found.setdefault(job_id, node)
        return [
            Requeue(job_id, f"nothing of it is left on {node}, which has probably lost power")
            for job_id, node in sorted(found.items())
        ]

    async def _ask(self, node: str, job: SlurmJob, absence: _Absence) -> None:
        """Sets `lost`, or puts the matter off."""
        try:
            living = await self._nodes.living(node, job.id, deadline_seconds=ASK_SECONDS)
        except GandivaError as error:
            # Not known. (An agent from before this could be asked does not know the verb.)
            log.info("job %s: not known whether it lives on %s: %s", job.id, node, error)
            absence.ask_at += LOST_SECONDS
            return
        finally:
            absence.asked = None
        booted_since = job.start_time is not None and living.booted_at > job.start_time
        if living.processes == 0 and booted_since:
            message = f"Slurm takes it for {job.state_name}, but nothing of it is left on {node}"
            log.warning("job %s (user %s): %s; it is requeued", job.id, job.user, message)
            absence.lost, absence.alive, absence.ask_at = True, False, math.inf
        else:
            absence.alive = True
            absence.ask_at += ALIVE_SECONDS
