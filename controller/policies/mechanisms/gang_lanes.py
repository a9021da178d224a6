# SPDX-License-Identifier: GPL-2.0-or-later
"""Gangs: one lane for the whole cluster, and GPUs that a gang has for itself while it runs."""

import math
from collections.abc import Mapping
from typing import Any

from controller.model import Changes, Job, JobId, Placement, Reason, Snapshot, Why, by_node
from controller.policies import budget
from controller.policies.mechanisms.clearing import Clearing
from controller.policies.mechanisms.lane import Lane
from controller.policies.mechanisms.ordered import Ordered
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING, Key, Row, Shape, taken
from controller.policies.mechanisms.settled import let_arrive, let_return
from controller.policies.orders.order import Order
from controller.policies.placement.consolidation import Consolidation
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free
from controller.policies.placement.gangs import find, held, own_gpus

_ROUNDS = 64
"""How often a scan is repeated because a shape could not be placed."""


class GangLanes(Ordered):
    """The lane, the GPUs, and the gangs that are bound to nodes which are being drained."""

    def __init__(
        self, order: Order, consolidation: Consolidation, *, preempt: bool = True, backfill: bool = True
    ) -> None:
        super().__init__(order, preempt=preempt)
        self._rules, self._backfill = consolidation, backfill

    # -- what is known --------------------------------------------------------------------------------

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        super().reset(snapshot, common, rows)
        self._free, self._lane = Free(snapshot.nodes), Lane()
        self._consolidation = self._rules.fitted(snapshot.models, snapshot.rates)
        self._leaving: dict[JobId, Row] = {}
        """Waiting jobs that are bound to GPUs of nodes where nothing starts any more."""
        self._coming: dict[JobId, Row] = {}
        """Jobs that migrate, and can start where they go to."""
        self._ready = True
        """Something changed since the last decision."""
        self._epoch: float | None = None
        """Of the keys of running jobs."""

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        same = all(self._free.same_gpus(name, snapshot.nodes.get(name)) for name in changed.nodes)
        self._ready = self._ready or bool(changed.nodes)
        return same

    def change(self, job_id: JobId, before: Placement, after: Placement) -> None:
        self._free.hold(job_id, taken(job_id, after, self._rows))

    def held(self, job: Job) -> Placement:
        return held(self._free, job)

    def kept_until(self, job: Job) -> float:
        """Its switch has paid off then."""
        return -math.inf if job.keeps_until is None else job.keeps_until

    # -- who is in the lane ---------------------------------------------------------------------------

    def enter(self, row: Row) -> float:
        job, until = row.job, math.inf
        self._ready = True
        demand = self._demand(job)
        if row.standing is WAITING and self.held(job).allocation:
            self._coming[job.id] = row
        elif row.standing is WAITING:
            consolidated = self._consolidation.demands(job, row.usage, row.profile, self._now)
            if consolidated:
                until = self._consolidation.until(job, row.usage)
            row.shape = (demand, job.signature, consolidated, job.placement.allocation)
            if demand < job.gpus:
                self._leaving[job.id] = row
            else:
                self._line_up(row)
        elif row.standing is RUNNING:
            if demand == 0:
                row.standing = FIXED  # where nothing starts its GPUs are of use to no other job
            else:
                row.shape, row.in_line = (demand,), True
                self._lane.add_running(row.key, demand)
        return until

    def leave(self, row: Row) -> None:
        super().leave(row)
        self._ready = True
        self._leaving.pop(row.id, None)
        self._coming.pop(row.id, None)
        if row.in_line and row.standing is RUNNING:
            self._lane.remove_running(row.key)
        elif row.in_line:
            self._lane.remove_waiting(row.key, row.shape)
        row.in_line = False

    def _line_up(self, row: Row) -> None:
        row.in_line = True
        self._lane.add_waiting(row.key, row.shape)

    def _demand(self, job: Job) -> int:
        """GPUs that the job takes of those that are given out: not those on nodes where nothing starts."""
        closed = self._free.closed
        own = (job.placement.gpus or own_gpus(job)) if closed else frozenset()
        return job.gpus - sum(gpu.node in closed for gpu in own)

    def waits(self, row: Row) -> Why:
        job, words = row.job, self._ranks.words(row)
        if row.id in self._coming:
            where = ",".join(sorted(by_node(job.promised)))
            return Why(Reason.MIGRATES, f"continues on {where}, where its GPUs are promised to it")
        if job.placement.allocation:
            names = sorted(by_node(own_gpus(job)))
            nodes = [self._free.node(name) for name in names if name in self._free.closed]
            drained = "".join(f"; {n.name} starts no other job ({n.reason})" for n in nodes if n is not None)
            reason = Reason.NODE_DRAINS if drained else Reason.WAITS_FOR_TURN
            return Why(reason, f"{words} on {','.join(names)}, where it is bound{drained}")
        few = " on as few nodes as possible" if row.shape[2] is True else ""
        return self._free.why_nowhere(job) or Why(Reason.WAITS_FOR_GPUS, words + few)

    def wake(self) -> float:
        """Also when the running jobs' keys change, if one waits for them."""
        contested = self._lane.contested and self._lane.running
        return min(super().wake(), self._ranks.order.epoch_end(self._now) if contested else math.inf)

    # -- deciding -------------------------------------------------------------------------------------

    def give(self, draft: Draft) -> None:
        epoch = self._ranks.order.epoch(self._now)
        if not self._ready and epoch == self._epoch:
            return
        self._ready = False
        let_arrive(draft, self._coming.values())
        self._admit()
        if self._lane.contested:
            if epoch != self._epoch:
                self._epoch = epoch
                self._rekey_running()
            self._ready = self._fill(draft)
        wholly = [row for row in self._leaving.values() if row.shape[0] == 0]
        let_return(draft, self._free, sorted(wholly, key=lambda row: row.key))
        draft.budget.more |= self._ready

    def rekey(self) -> None:
        self._rekey_running()
        for line in self._lane.lines():
            line[:] = sorted(map(self._new_key, line))

    def _rekey_running(self) -> None:
        running = zip(self._lane.running, self._lane.sizes, strict=True)
        self._lane.reorder([(self._new_key(key), size) for key, size in running])

    def _new_key(self, key: Key) -> Key:
        row = self._rows[key[-1]]
        row.key = self._ranks.key(row)
        return row.key

    def _fill(self, draft: Draft) -> bool:
        """Start those whose turn it is. True: not all of them; so Slurm is not asked for all at once."""
        mark, most, limit = draft.mark(), dict[Shape, int](), max(1, draft.budget.left // budget.START)
        for _ in range(_ROUNDS):
            starts, stops = self._lane.scan(self._free.count.total(), most, limit, backfill=self._backfill)
            clearing = Clearing(self._free, draft, self._rows, self._lane.running)
            for job_id in stops:
                clearing.stop(job_id)
            placed: dict[Shape, int] = {}
            failed: set[Shape] = set()
            for job_id in starts:
                row = self._rows[job_id]
                if row.shape in failed:
                    continue
                consolidated = row.shape[2] is True
                gpus = find(self._free, row.job, consolidated=consolidated)
                if gpus is None and self._preempt:
                    gpus = clearing.make_room(row, consolidated=consolidated)
                if gpus is None:
                    failed.add(row.shape)
                    if not self._backfill:
                        break  # it blocks all behind it
                    continue
                draft.put(job_id, Placement(gpus, row.job.placement.allocation or gpus))
                placed[row.shape] = placed.get(row.shape, 0) + 1
            if not failed or not self._backfill:
                break
            draft.rollback(mark)
            most.update({shape: placed.get(shape, 0) for shape in failed})
        if len(clearing.stopped) > len(stops):
            clearing.let_go_on()
        draft.budget.spend(budget.START * len(starts))
        return len(starts) >= limit

    # -- nodes that are being drained -----------------------------------------------------------------

    def _admit(self) -> None:
        """A gang that is bound to drained nodes and to open ones competes for its GPUs of the open ones while
        those of the drained ones are idle."""
        for row in self._leaving.values():
            drained = [gpu for gpu in own_gpus(row.job) if gpu.node in self._free.closed]
            admitted = row.shape[0] != 0 and self._free.all_idle(drained)
            if admitted and not row.in_line:
                self._line_up(row)
            elif row.in_line and not admitted:
                row.in_line = False
                self._lane.remove_waiting(row.key, row.shape)
