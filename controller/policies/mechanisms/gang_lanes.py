# SPDX-License-Identifier: GPL-2.0-or-later
"""Gangs: one lane for the whole cluster, and GPUs that a gang has for itself while it runs.

Jobs that Slurm has bound go on where they are bound; all others are placed anew each time they start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from controller.model import NOWHERE, Changes, GpuSet, Job, JobId, Placement, Snapshot
from controller.policies.mechanisms.lane import Lane
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING, Key, Ranking, Row, Shape
from controller.policies.placement.consolidation import Consolidation
from controller.policies.placement.draft import Draft
from controller.policies.placement.pool import GpuPool

NAME = "cluster"
_ROUNDS = 64
"""How often a scan is repeated because a shape could not be placed."""


class GangLanes:
    """The lane, the pool, and the search for GPUs."""

    notes_on_arrival = True

    def __init__(
        self,
        consolidation: Consolidation,
        *,
        preempt: bool = True,
        backfill: bool = True,
        most_starts: int = 250,
    ) -> None:
        """`most_starts`: with one plan; the next plan, asked for at once, goes on. So a decision takes no
        longer where thousands are to change places, and Slurm is not asked for all at once."""
        self._rules, self._consolidation = consolidation, consolidation
        self._preempt, self._backfill, self._most_starts = preempt, backfill, most_starts
        self.reset(Snapshot(time=0.0, nodes={}, jobs={}), {})

    # -- what is known --------------------------------------------------------------------------------

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any]) -> None:
        """Begin anew: no job is known."""
        self._pool, self._lane = GpuPool(snapshot.nodes), Lane()
        self._consolidation = self._rules.fitted(snapshot.models, snapshot.rates)
        self._rows: dict[JobId, Row] = {}
        self._leaving: dict[JobId, Row] = {}
        """Waiting jobs that are bound to GPUs of nodes where nothing starts any more."""
        self._ready = True
        """Something changed since the last decision."""
        self._epoch: float | None = None
        """Of the keys of running jobs."""
        self.reasons: dict[JobId, str] = {}

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        """False: they offer other GPUs than before, so begin anew."""
        same = all(self._pool.same_gpus(name, snapshot.nodes.get(name)) for name in changed.nodes)
        self._ready = self._ready or bool(changed.nodes)
        return same

    def change(self, job_id: JobId, before: Placement, after: Placement) -> None:
        """For the draft: count GPUs as given and taken."""
        given = frozenset() if before.guest(job_id) else before.gpus
        taken = frozenset() if after.guest(job_id) else after.gpus
        if given != taken:
            self._pool.give(self._pool.holding(given))
            self._pool.take(self._pool.holding(taken))

    def restore(self, job_id: JobId, before: Placement, after: Placement, undo: Any) -> None:
        """The other way."""
        self.change(job_id, after, before)

    def common(self) -> Mapping[str, Any]:
        """Nothing to remember beyond jobs."""
        return {}

    def know(self, row: Row) -> None:
        """A job came, or is not as it was; called before the draft counts what it has."""
        self._rows[row.id] = row

    def forget(self, row: Row) -> None:
        """The job has left the cluster."""
        self._rows.pop(row.id, None)

    # -- who is in the lane -----------------------------------------------------------------------------

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned: a suspended one has nothing."""
        return job.placement if job.placement.gpus and not job.leaving else NOWHERE

    def kept_until(self, job: Job) -> float:
        """Its switch has paid off then."""
        return -math.inf if job.keeps_until is None else job.keeps_until

    def enter(self, row: Row, now: float) -> float:
        """Put the job where it stands; returns when that changes by itself."""
        job, until = row.job, math.inf
        self._ready = True
        demand = self._demand(row)
        if row.standing is WAITING:
            wanted = self._consolidation.demands(job, row.usage, row.profile, now)
            if wanted:
                until = self._consolidation.until(job, row.usage)
            row.shape = self._shape(job, demand, wanted)
            if demand < job.gpus:
                self._leaving[job.id] = row
            else:
                self._wait(row)
        elif row.standing is RUNNING:
            if demand == 0:
                row.standing = FIXED  # where nothing starts its GPUs are of use to no other job
                return until
            row.shape = (demand,)
            row.lane = NAME
            self._lane.add_running(row.key, demand)
        return until

    def _wait(self, row: Row) -> None:
        row.lane = NAME
        self._lane.add_waiting(row.key, row.shape)

    def leave(self, row: Row) -> None:
        """Take it out again."""
        self._ready = True
        self._leaving.pop(row.id, None)
        self._leave_lane(row)

    def _leave_lane(self, row: Row) -> None:
        if row.lane is None:
            return
        row.lane = None
        if row.standing is RUNNING:
            self._lane.remove_running(row.key)
        else:
            self._lane.remove_waiting(row.key, row.shape)

    def _demand(self, row: Row) -> int:
        """GPUs that the job takes of those that are given out: not those on nodes where nothing starts."""
        own = row.job.placement.gpus or _own_gpus(row.job)
        if not own or not self._pool.closed:
            return row.job.gpus
        return row.job.gpus - sum(gpu.node in self._pool.closed for gpu in own)

    def _shape(self, job: Job, demand: int, consolidated: bool) -> Shape:
        request = job.request
        if not (job.allocation or job.excluded_nodes or job.required_nodes or request.gpu_types):
            return (demand, request.nodes, consolidated, job.cpus_per_node, job.memory_per_node_bytes)
        return (
            demand,
            request.nodes,
            consolidated,
            job.cpus_per_node,
            job.memory_per_node_bytes,
            request.gpu_types,
            job.allocation,
            job.excluded_nodes,
            job.required_nodes,
        )

    @property
    def contested(self) -> bool:
        """A job waits in the lane beside running ones that may be stopped."""
        return self._lane.contested and bool(self._lane.running)

    def wake(self) -> float:
        """When to decide again, beyond the jobs' own times."""
        return math.inf

    # -- deciding -------------------------------------------------------------------------------------

    def decide(self, draft: Draft, now: float, ranking: Ranking) -> bool:
        """Who runs where. True: there is more to decide; plan again at once."""
        if ranking.epoch != self._epoch:
            self._ready = True
        if not self._ready:
            return False
        self._ready = False
        self._admit()
        if self._lane.contested:
            if ranking.epoch != self._epoch:
                self._epoch = ranking.epoch
                self._rekey(ranking)
            self._ready = self._fill(draft)
        self._let_leave(draft)
        return self._ready

    def _rekey(self, ranking: Ranking) -> None:
        """An epoch has begun: the keys of running jobs are others."""
        entries: list[tuple[Key, int]] = []
        for old, size in zip(self._lane.running, self._lane.sizes, strict=True):
            row = self._rows[old[-1]]
            row.key = ranking.key(row)
            entries.append((row.key, size))
        self._lane.reorder(entries)

    def _fill(self, draft: Draft) -> bool:
        mark, most = draft.mark(), dict[Shape, int]()
        for _ in range(_ROUNDS):
            starts, stops = self._lane.scan(
                self._pool.free_count, most, self._most_starts, backfill=self._backfill
            )
            stopped = {job_id: draft.of(job_id) for job_id in stops}
            for job_id in stops:
                draft.put(job_id, NOWHERE)
            placed: dict[Shape, int] = {}
            failed: set[Shape] = set()
            for job_id in starts:
                row = self._rows[job_id]
                if row.shape in failed:
                    continue
                gpus = self._find(row) or self._make_room(row, draft, stopped)
                if gpus is None:
                    failed.add(row.shape)
                    if not self._backfill:
                        break  # it blocks all behind it
                    continue
                draft.put(job_id, Placement(gpus, row.job.allocation or gpus))
                placed[row.shape] = placed.get(row.shape, 0) + 1
            if not failed or not self._backfill:
                break
            draft.rollback(mark)
            most.update({shape: placed.get(shape, 0) for shape in failed})
        if len(stopped) > len(stops):
            # Room was made for some: those whose GPUs no job took go on.
            for job_id in sorted(stopped, key=lambda j: self._rows[j].key):
                if self._pool.all_free(stopped[job_id].gpus):
                    draft.put(job_id, stopped[job_id])
        return len(starts) >= self._most_starts

    def _find(self, row: Row) -> GpuSet | None:
        job, pool = row.job, self._pool
        if not job.allocation:
            found = pool.find(job, consolidated=row.shape[2] is True)
            return None if found is None else pool.gpus(found)
        # Slurm has bound it already: it goes on where it was, or on any free GPUs of its allocation.
        own = _own_gpus(job)
        if len(own) == job.gpus and pool.all_idle(own):
            return own
        if job.may_move and job.floating:
            free = [gpu for gpu in sorted(job.allocation) if pool.all_free((gpu,))]
            if len(free) >= job.gpus:
                return frozenset(free[: job.gpus])
        return None

    def _make_room(self, row: Row, draft: Draft, stopped: dict[JobId, Placement]) -> GpuSet | None:
        """There are GPUs enough, but not where this job can use them: stop jobs behind it, the last first.
        Adds them to `stopped`."""
        if not self._preempt:
            return None
        mark, share = draft.mark(), self._share(row.job)
        released: dict[JobId, Placement] = {}
        for key in reversed(self._lane.running):
            if key < row.key:
                break
            had = draft.of(key[-1])
            if not had.gpus:
                continue
            draft.put(key[-1], NOWHERE)
            released[key[-1]] = had
            if not self._pool.any_room(had.gpus, share):
                continue
            found = self._find(row)
            if found is not None:
                for job_id, placement in released.items():
                    if found.isdisjoint(placement.gpus):
                        draft.put(job_id, placement)
                    else:
                        stopped[job_id] = placement
                return found
        draft.rollback(mark)
        return None

    def _share(self, job: Job) -> int:
        """The fewest GPUs of the gang on one node."""
        if job.allocation:
            return 1
        return job.gpus // (job.request.nodes or max(1, -(-job.gpus // max(1, self._pool.largest))))

    def _admit(self) -> None:
        """A gang that is bound to drained nodes and to open ones competes for its GPUs of the open ones while
        those of the drained ones are idle."""
        for row in self._leaving.values():
            drained = [gpu for gpu in _own_gpus(row.job) if gpu.node in self._pool.closed]
            admitted = row.shape[0] != 0 and self._pool.all_idle(drained)
            if admitted and row.lane is None:
                self._wait(row)
            elif not admitted:
                self._leave_lane(row)

    def _let_leave(self, draft: Draft) -> None:
        """A node that is being drained gets empty when the jobs bound to it have ended: those that are off
        their GPUs go on there when all of them are idle."""
        wholly = [row for row in self._leaving.values() if row.shape[0] == 0]
        for row in sorted(wholly, key=lambda r: r.key):
            own = _own_gpus(row.job)
            if len(own) == row.job.gpus and self._pool.all_idle(own):
                draft.put(row.id, Placement(own, row.job.allocation))


def _own_gpus(job: Job) -> GpuSet:
    """Those that a job off its GPUs goes on with: where it was last; if that is not known, its allocation."""
    return job.last if len(job.last) == job.gpus else job.allocation
