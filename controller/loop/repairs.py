# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm and the nodes disagree about, and what is done or left undone because of it.

Each case has a module of its own in `observe/`: jobs that are nowhere (`vanished`), jobs that are still somewhere
(`surviving`), and holds that look like an administrator's (`holds`).
"""

from __future__ import annotations

import logging

from controller.act.actions import Action, Place
from controller.act.site import Site
from controller.model import JobId, Snapshot
from controller.nodes.port import NodePort
from controller.observe.holds import HoldRestorer
from controller.observe.observer import Observer
from controller.observe.surviving import surviving_processes
from controller.observe.vanished import VanishedJobs

log = logging.getLogger(__name__)


class Repairs:
    """Goes over the actions of a turn."""

    def __init__(self, nodes: NodePort, site: Site, suspended: list[JobId]) -> None:
        """`suspended`: jobs that were suspended when an earlier controller saw them last."""
        self._site = site
        self._vanished = VanishedJobs(nodes)
        self._holds = HoldRestorer(suspended)

    def mend(self, actions: list[Action], observer: Observer, snapshot: Snapshot) -> list[Action]:
        """Without actions that would do harm, with those that put things right."""
        if out_of_reach := self._vanished.look(observer, snapshot):
            actions = [action for action in actions if action.job_id not in out_of_reach]
            actions += self._vanished.actions(snapshot)
        actions += self._holds.actions(observer, snapshot)
        placed = {action.job_id for action in actions if isinstance(action, Place)}
        for job_id, node in surviving_processes(placed, observer.nodes.samples).items():
            message = f"pending in Slurm, but its processes live on {node}; placed once Slurm has ended them"
            log.warning("job %s: %s", job_id, message)
            self._site.hold(job_id, self._site.settings.place_retry_seconds, "place-failed", message)
            placed.discard(job_id)
            actions = [action for action in actions if action.job_id != job_id]
        return actions
