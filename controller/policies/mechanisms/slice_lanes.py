# SPDX-License-Identifier: GPL-2.0-or-later
"""Slices: a lane for each node, to which jobs are bound, and GPUs that they have in turn (SPEC 1.3, 1.8).

A job that finds free GPUs is bound to exactly these. Where none is free it is promised all GPUs of a node
of its size, and runs on any of them in turn: it floats. Nodes that a gang spans are one lane, so that its
parts start and stop as one.

Source: Gandiva (OSDI'18) 4.1, 4.2, Algorithm 1.
"""

import math
from collections.abc import Mapping
from typing import Any

from controller.model import NOWHERE, Changes, Job, JobId, Placement, Snapshot
from controller.model.timers import TINY
from controller.policies.mechanisms.bindings import Bindings
from controller.policies.mechanisms.ordered import Ordered
from controller.policies.mechanisms.queue import Queue
from controller.policies.mechanisms.row import WAITING, Row
from controller.policies.mechanisms.turns import Turns
from controller.policies.orders.order import Order
from controller.policies.placement.draft import Draft
from controller.policies.recalled import mapping, recalled


class SliceLanes(Ordered):
    """Who is bound where, who waits for a place, and whose turn it is."""

    notes_on_arrival = False

    def __init__(self, order: Order, *, slice_seconds: float = 60.0, max_jobs_per_gpu: int = 4) -> None:
        """`max_jobs_per_gpu`: on average over a node; more jobs wait in the queue."""
        super().__init__(order)
        self._slice_seconds, self._max_jobs_per_gpu = slice_seconds, max_jobs_per_gpu
        self._patience_seconds = slice_seconds * max_jobs_per_gpu
        """A job waits in the queue as long as those that share wait for their turns, at most. Then it shares
        nodes with jobs of other sizes."""

    # -- what is known --------------------------------------------------------------------------------

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        super().reset(snapshot, common, rows)
        lanes = mapping(common.get("lanes"))
        self._bindings = Bindings(snapshot.nodes, recalled(lanes.get("affinity"), dict[str, int], {}), rows)
        # The wall clock may have been set back.
        starts = {
            name: min(start, snapshot.time)
            for name, start in recalled(lanes.get("slices"), dict[str, float], {}).items()
            if name in snapshot.nodes
        }
        self._queue = Queue(self._bindings, self._max_jobs_per_gpu)
        self._turns = Turns(self._bindings, rows, self._slice_seconds, starts)

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        self._bindings.room = self._bindings.room or bool(changed.nodes)
        same_offer = self._bindings.fleet.same_offer
        return all(same_offer(name, snapshot.nodes.get(name)) for name in changed.nodes)

    def remembered(self) -> Mapping[str, Any]:
        """Affinity and begin of the slice by node."""
        return {"affinity": dict(self._bindings.fleet.affinity), "slices": dict(self._turns.starts)}

    def change(self, job_id: JobId, before: Placement, after: Placement) -> Mapping[str, int | None]:
        return self._bindings.change(job_id, before, after)

    def restore(self, job_id: JobId, before: Placement, after: Placement, undo: Any) -> None:
        self._bindings.restore(job_id, before, after, undo)

    def held(self, job: Job) -> Placement:
        """Its allocation, also while suspended; what it goes to, while it leaves it for that. A promise does
        not count where nothing starts."""
        if job.placement.allocation and not (job.leaving and job.promised):
            return Placement(frozenset(), job.placement.allocation) if job.leaving else job.placement
        nodes = self._bindings.fleet.nodes
        names = {gpu.node for gpu in job.promised}
        kept = all(name in nodes and nodes[name].offer.available for name in names)
        return Placement(frozenset(), job.promised) if kept else NOWHERE

    # -- who competes ---------------------------------------------------------------------------------

    def enter(self, row: Row) -> float:
        job, until, held = row.job, math.inf, self.held(row.job)
        self._bindings.recount(job)
        if row.standing is WAITING and not job.placement.allocation:
            # What a job grew for is its own only as a whole: else it finds a place as any other.
            promised, since = bool(held.allocation) and not job.promised_size, row.usage.idle_since or 0.0
            if not promised:
                until = max(job.submit_time, since) + self._patience_seconds
            patient = until > self._now + TINY
            self._queue.add(row, patient_until=until if patient else None, promised=promised)
            until = until if patient else math.inf
        self._bindings.touch(held)
        return until

    def leave(self, row: Row) -> None:
        super().leave(row)
        self._queue.remove(row)
        self._bindings.touch(self.held(row.job))

    def wake(self) -> float:
        return min(super().wake(), self._turns.wake())

    def give(self, draft: Draft) -> None:
        self._bindings.settle_affinity()
        self._queue.place(draft)
        self._turns.give(draft, self._now, self._ranks)
