# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm and the nodes disagree about, and what is done or left undone because of it.

Jobs that have vanished (`observe/vanished.py`), holds that look like an administrator's (`observe/holds.py`),
and jobs that Slurm has as pending while their processes are on a node.

A slurmctld that is killed forgets the starts of its last moments. Releasing such a job once more would start
a second copy, which slurmd refuses ("Duplicate jobid"), and Slurm would drain the node. So it waits until
Slurm has found the first copy and ended it, which it does when the node registers anew.
"""

import logging
from collections.abc import Iterable

from controller.act.actions import Action, Place, Requeue, Withdraw
from controller.act.context import PLACE_RETRY_SECONDS, Context
from controller.model import JobId, Reason, Why
from controller.observe.holds import HoldRestorer
from controller.observe.observer import Observer
from controller.observe.vanished import VanishedJobs

log = logging.getLogger(__name__)


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
            for job_id, node in self._vanished.found(observer).items():
                words = f"nothing of it is left on {node}, which has probably lost power"
                actions.append(Requeue(job_id, Why(Reason.REPAIRED, words)))
        for job_id in self._holds.look(observer, now):
            words = "restores the hold after requeue of a suspended job"
            actions.append(Withdraw(job_id, Why(Reason.REPAIRED, words)))
        placed = {action.job_id for action in actions if isinstance(action, Place)}
        showing = ((job_id, name) for job_id in placed for name in observer.nodes.showing(job_id))
        lives = observer.nodes.lives
        surviving = {job_id: name for job_id, name in sorted(showing, reverse=True) if lives(name, job_id)}
        for job_id, node in surviving.items():
            message = f"pending in Slurm, but its processes live on {node}; placed once Slurm has ended them"
            log.warning("job %s: %s", job_id, message)
            self._context.hold(job_id, PLACE_RETRY_SECONDS, "place-failed", message)
        return [action for action in actions if action.job_id not in surviving]
