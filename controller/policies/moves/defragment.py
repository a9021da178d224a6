# SPDX-License-Identifier: GPL-2.0-or-later
"""Defragmentation: free GPUs are scattered over nodes while a gang waits that needs them on one. Jobs of a
nearly free node migrate to fuller ones (SPEC 1.5).

Where a job goes to, its GPUs are promised to it until it starts there. What it leaves is for the mechanism.

Source: Gandiva (OSDI'18) 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import islice

from controller.model import GpuId, GpuSet, Job, JobId, Snapshot
from controller.policies.budget import SEEN, TRIED
from controller.policies.moves.migrations import Migrations
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts, first_to_take
from controller.policies.settings import DefragmentSettings, MigrationSettings

NAME = "defragment"


class Defragment:
    """One node at a time, for the job that waits longest."""

    def __init__(self, settings: DefragmentSettings, migration: MigrationSettings) -> None:
        self._settings, self._migration = settings, migration

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        migrations = Migrations(snapshot, draft, self._migration)
        nodes = _Nodes(snapshot, draft, self._settings.free_fraction)
        if any(map(nodes.is_nearly_free, nodes.free.fitting(1))):
            waiting = [job for job in snapshot.jobs.values() if _waits(job, draft)]
            waiting = [job for job in waiting if not migrations.cools_down(job.id)]
            self._help(waiting, nodes, snapshot, migrations)
        migrations.save()

    def _help(self, waiting: list[Job], nodes: _Nodes, snapshot: Snapshot, migrations: Migrations) -> None:
        """The first job for which it pays."""
        tried: set[tuple[object, ...]] = set()
        for job in sorted(waiting, key=lambda job: (-job.priority_class, job.submit_time, job.id)):
            shape = (job.signature, job.priority_class)
            if shape in tried:
                continue
            tried.add(shape)
            if nodes.takes(job):
                continue
            for name in nodes.nearly_free():
                moves = nodes.cleared(name, job, migrations.may_go)
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


class _Nodes:
    """Free GPUs by node, as the draft has them: those that no job has, or is bound to."""

    def __init__(self, snapshot: Snapshot, draft: Draft, free_fraction: float) -> None:
        """`free_fraction`: of a node that is nearly free."""
        self._snapshot, self._draft, self._free_fraction = snapshot, draft, free_fraction
        self.free = draft.free(snapshot)
        self._clearings = SEEN
        """How often it is still tried to clear a node."""

    def takes(self, job: Job) -> bool:
        """Whether a node takes the job as things stand."""
        tried = list(islice(self.free.fitting(job.gpus, emptiest=True), SEEN))
        # Where not all were looked at, it may be that one does.
        return len(tried) == SEEN or any(self._accepts(name, job) for name in tried)

    def _accepts(self, name: str, job: Job) -> bool:
        return accepts(self._snapshot.nodes[name], job, job.gpus)

    def is_nearly_free(self, name: str) -> bool:
        return self.free.count_on(name) >= self._free_fraction * len(self._snapshot.nodes[name].gpus)

    def nearly_free(self) -> list[str]:
        """Nodes in use where so much is free, those with the most free GPUs first: the first few."""
        in_use = filter(self.free.jobs_on, self.free.fitting(1, emptiest=True))
        return list(islice(filter(self.is_nearly_free, in_use), TRIED))

    def cleared(self, name: str, job: Job, may_go: Callable[[Job], bool]) -> dict[JobId, GpuSet]:
        """Where jobs of this node go, so that it takes the job: as few as are needed, the smallest first.
        Empty: not all that would have to go may, and have a place. `may_go`: whether a job may go."""
        usable = {gpu.id for gpu in self._snapshot.nodes[name].gpus if gpu.usable}
        self._clearings -= 1
        if self._clearings < 0 or len(usable) < job.gpus or not self._accepts(name, job):
            return {}
        had = {job_id: self._draft.of(job_id).held for job_id in self.free.jobs_on(name)}

        def enough(gone: Set[JobId]) -> bool:
            """Whether the job has room without these."""
            kept = set[GpuId]().union(*(gpus for job_id, gpus in had.items() if job_id not in gone))
            left = set[GpuId]().union(*map(had.__getitem__, gone)) - kept
            return self.free.count_on(name) + len(left & usable) >= job.gpus

        moves, here = dict[JobId, GpuSet](), [self._snapshot.jobs[job_id] for job_id in had]
        for other in sorted(here, key=lambda other: (other.gpus, other.id)):
            if enough(moves.keys()):
                break
            outranks, own = other.priority_class > job.priority_class, had[other.id]
            if outranks or {gpu.node for gpu in own} != {name} or not may_go(other):
                continue
            target = self._tightest(other, name)
            if target is not None:
                moves[other.id] = frozenset(self.free.on(target)[: other.gpus])
                self.free.hold(other.id, own | moves[other.id])
        for job_id in moves:
            self.free.hold(job_id, had[job_id])
        # One that went for GPUs that others keep need not go.
        for job_id in list(moves):
            if enough(moves.keys() - {job_id}):
                del moves[job_id]
        return moves if enough(moves.keys()) else {}

    def _tightest(self, job: Job, source: str) -> str | None:
        """A node in use that has no more free GPUs than the one it leaves, and the same type."""
        nodes, most = self._snapshot.nodes, self.free.count_on(source)
        in_use = filter(self.free.jobs_on, self.free.fitting(job.gpus, most))
        names = (name for name in in_use if name != source)
        return first_to_take(job, nodes, names, nodes[source].model)


def _waits(job: Job, draft: Draft) -> bool:
    """Whether it waits for GPUs on one node, whichever that is."""
    free_to_choose = job.may_start and not job.placement.allocation and not draft.of(job.id).allocation
    return free_to_choose and job.gpus > 1 and job.request.nodes in (None, 1)
