# SPDX-License-Identifier: GPL-2.0-or-later
"""Defragmentation: free GPUs are scattered over servers while a gang waits that needs them on one. Jobs of a
nearly free server migrate to fuller ones (SPEC 1.5).

Where a job goes to, its GPUs are promised to it until it starts there. What it leaves is for the mechanism.

Source: Gandiva (OSDI'18) 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice

from controller.model import GpuId, GpuSet, Job, JobId, Node, Snapshot
from controller.policies.moves.drawers import Drawers
from controller.policies.moves.free import free_gpus
from controller.policies.moves.migrations import Migrations
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts
from controller.policies.settings import DefragmentSettings, MigrationSettings

_TRIES = 16
"""Servers that are looked at for one shape of waiting jobs,"""
_LOOKS = 256
"""servers that a job could go to,"""
_CLEARINGS = 256
"""and how often in one plan it is tried to clear one."""
NAME = "defragment"


class Defragment:
    """One server at a time, for the job that waits longest."""

    def __init__(self, settings: DefragmentSettings, migration: MigrationSettings) -> None:
        self._settings, self._migration = settings, migration

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        migrations = Migrations(snapshot, draft, self._migration)
        free = free_gpus(snapshot, draft)
        if any(len(gpus) >= self._least(snapshot.nodes[name]) for name, gpus in free.items()):
            waiting = [job for job in snapshot.jobs.values() if _waits(job, draft)]
            waiting = [job for job in waiting if not migrations.cools_down(job.id)]
            if waiting:
                servers = _Servers(snapshot, draft, free)
                self._help(waiting, servers, snapshot, migrations)
        migrations.save()

    def _least(self, node: Node) -> float:
        """So many GPUs are free where a server is cleared."""
        return self._settings.free_fraction * len(node.gpus)

    def _help(
        self, waiting: list[Job], servers: _Servers, snapshot: Snapshot, migrations: Migrations
    ) -> None:
        """The first job for which it pays."""
        tried: set[tuple[object, ...]] = set()
        for job in sorted(waiting, key=lambda job: (-job.priority_class, job.submit_time, job.id)):
            shape = (job.signature, job.priority_class)
            if shape in tried or servers.takes(job):
                continue
            tried.add(shape)
            for name in servers.nearly_free(self._settings.free_fraction):
                moves = servers.cleared(name, job, migrations.may_go)
                moved = [snapshot.jobs[job_id] for job_id in moves]
                if 0 < len(moved) <= migrations.left and migrations.pays(
                    _gain(job, moved, migrations), moved
                ):
                    for job_id, gpus in moves.items():
                        why = f"{name} is cleared for job {job.id} ({job.gpus} GPUs)"
                        migrations.go(NAME, job_id, gpus, why)
                    migrations.note(job.id)
                    return


def _gain(job: Job, moved: list[Job], migrations: Migrations) -> float:
    """GPU-seconds of the job that can start. It could start anyway when those that move have ended."""
    until = max(migrations.remaining_seconds(other) for other in moved)
    return job.gpus * min(until, migrations.remaining_seconds(job))


class _Servers:
    """Free GPUs by node, as the draft has them: those that no job has, or is bound to."""

    def __init__(self, snapshot: Snapshot, draft: Draft, free: Mapping[str, list[GpuId]]) -> None:
        self._snapshot, self._draft, self._free = snapshot, draft, free
        self._on: dict[str, set[JobId]] = {}
        """Jobs that have GPUs of a node, or are bound to it."""
        for job_id, placement in draft.placements.items():
            for name in {gpu.node for gpu in placement.allocation}:
                self._on.setdefault(name, set()).add(job_id)
        self._takes: dict[object, bool] = {}
        self._clearings = _CLEARINGS
        self._all = Drawers(free)
        self._in_use = Drawers({name: gpus for name, gpus in free.items() if self._on.get(name)})

    def takes(self, job: Job) -> bool:
        """Whether a node takes the job as things stand."""
        shape = job.signature
        if shape not in self._takes:
            tried = list(islice(self._all.emptiest(job.gpus), _LOOKS))
            nodes = (self._snapshot.nodes[name] for name in tried)
            # Where not all were looked at, it may be that one does.
            self._takes[shape] = len(tried) == _LOOKS or any(accepts(node, job, job.gpus) for node in nodes)
        return self._takes[shape]

    def _room(self, name: str, job: Job, gpus: int) -> bool:
        return gpus >= job.gpus and accepts(self._snapshot.nodes[name], job, job.gpus)

    def nearly_free(self, fraction: float) -> list[str]:
        """Nodes in use where so much is free, those with the most free GPUs first: the first few."""
        nodes = self._snapshot.nodes
        free = self._in_use.emptiest(1)
        return list(islice((n for n in free if len(self._free[n]) >= fraction * len(nodes[n].gpus)), _TRIES))

    def cleared(self, name: str, job: Job, may_go: Callable[[Job], bool]) -> dict[JobId, GpuSet]:
        """Where jobs of this node go, so that it takes the job: as few as are needed, the smallest first.
        Empty: not all that would have to go may, and have a place. `may_go`: whether a job may go."""
        usable = sum(gpu.usable for gpu in self._snapshot.nodes[name].gpus)
        self._clearings -= 1
        if self._clearings < 0 or not self._room(name, job, usable):
            return {}
        moves = dict[JobId, GpuSet]()
        here = [self._snapshot.jobs[job_id] for job_id in self._on[name]]
        for other in sorted(here, key=lambda other: (other.gpus, other.id)):
            if self._left(name, moves) >= job.gpus:
                break
            outranks, own = other.priority_class > job.priority_class, self._taken(other.id)
            if outranks or {gpu.node for gpu in own} != {name} or not may_go(other):
                continue
            target = self._tightest(other, name)
            if target is not None:
                moves[other.id] = self._in_use.take(target, other.gpus)
        for gpus in moves.values():
            self._in_use.give(next(iter(gpus)).node, gpus)
        # One that went for GPUs that others keep need not go.
        for job_id in list(moves):
            if self._left(name, moves.keys() - {job_id}) >= job.gpus:
                del moves[job_id]
        return moves if self._left(name, moves) >= job.gpus else {}

    def _taken(self, job_id: JobId) -> GpuSet:
        """GPUs that this job keeps from others: of a suspended one those that it is bound to."""
        placement = self._draft.of(job_id)
        return placement.gpus or placement.allocation

    def _left(self, name: str, without: Collection[JobId]) -> int:
        """Free GPUs of a node without these jobs."""
        kept = set[GpuId]().union(*(self._taken(i) for i in self._on[name] if i not in without))
        gone = set[GpuId]().union(*map(self._taken, without)) - kept
        usable = {gpu.id for gpu in self._snapshot.nodes[name].gpus if gpu.usable}
        return len(self._free[name]) + len(gone & usable)

    def _tightest(self, job: Job, source: str) -> str | None:
        """A node in use that has no more free GPUs than the one it leaves, and the same type."""
        nodes, most = self._snapshot.nodes, len(self._free[source])
        types = _types(nodes[source])
        for name in islice(self._in_use.fitting(job.gpus, most), _LOOKS):
            if name != source and _types(nodes[name]) == types and accepts(nodes[name], job, job.gpus):
                return name
        return None


def _types(node: Node) -> set[str]:
    return {gpu.model for gpu in node.gpus}


def _waits(job: Job, draft: Draft) -> bool:
    """Whether it waits for GPUs on one node, whichever that is."""
    free_to_choose = job.may_start and not job.placement.allocation and not draft.of(job.id).allocation
    return free_to_choose and job.gpus > 1 and job.request.nodes in (None, 1)
