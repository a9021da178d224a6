# SPDX-License-Identifier: GPL-2.0-or-later
"""Defragmentation: free GPUs are scattered over servers while a gang waits that needs them on one. Jobs of a
nearly free server migrate to fuller ones (SPEC 1.5).

Where a job goes to, its GPUs are promised to it until it starts there. What it leaves is for the mechanism.

Source: Gandiva (OSDI'18) 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from controller.model import GpuId, GpuSet, Job, JobId, Node, Placement, Snapshot, Verdict
from controller.policies.moves.free import free_gpus
from controller.policies.moves.trials import Trials
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts
from controller.policies.settings import DefragmentSettings

NAME = "defragment"
"""What the draft remembers under it: when jobs migrated, and when it was done for which waiting job."""


class Defragment:
    """One server at a time, for the job that waits longest."""

    def __init__(self, settings: DefragmentSettings) -> None:
        self._settings = settings

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        recently = self._recently(snapshot, draft)
        free = free_gpus(snapshot, draft)
        if any(len(gpus) >= self._least(snapshot.nodes[name]) for name, gpus in free.items()):
            waiting = [job for job in snapshot.jobs.values() if _waits(job, draft)]
            waiting = [job for job in waiting if str(job.id) not in recently]
            if waiting:
                self._help(waiting, _Servers(snapshot, draft, free), snapshot, draft, recently)
        draft.remember(NAME, recently or None)

    def _recently(self, snapshot: Snapshot, draft: Draft) -> dict[str, float]:
        """Jobs for which the cool-down is not over, and since when."""
        raw = draft.remembered.get(NAME)
        items = raw.items() if isinstance(raw, dict) else ()
        begin = snapshot.time - self._settings.cooldown_seconds
        return {str(i): at for i, at in items if isinstance(at, int | float) and at > begin}

    def _least(self, node: Node) -> float:
        """So many GPUs are free where a server is cleared."""
        return self._settings.free_fraction * len(node.gpus)

    def _help(
        self,
        waiting: list[Job],
        servers: _Servers,
        snapshot: Snapshot,
        draft: Draft,
        recently: dict[str, float],
    ) -> None:
        """The first job for which it pays."""
        trials = Trials(snapshot, draft, NAME, seconds=0.0, cooldown_seconds=0.0)
        stay = {job_id for job_id in snapshot.jobs if str(job_id) in recently or trials.busy(job_id)}
        tried: set[tuple[object, ...]] = set()
        for job in sorted(waiting, key=lambda job: (-job.priority_class, job.submit_time, job.id)):
            shape = (job.gpus, job.priority_class, job.request.gpu_types, job.required_nodes)
            if shape in tried or servers.takes(job):
                continue
            tried.add(shape)
            for name in servers.nearly_free(self._settings.free_fraction):
                moves = servers.cleared(name, job, stay)
                if moves and self._pays(job, moves, snapshot):
                    self._migrate(job, name, moves, draft)
                    recently |= {str(job_id): snapshot.time for job_id in (job.id, *moves)}
                    return

    def _pays(self, job: Job, moves: Mapping[JobId, GpuSet], snapshot: Snapshot) -> bool:
        gain_gpu_seconds = job.gpus * self._settings.horizon_seconds
        moved_gpus = sum(snapshot.jobs[job_id].gpus for job_id in moves)
        return gain_gpu_seconds > self._settings.gain_ratio * moved_gpus * self._settings.cost_seconds

    def _migrate(self, job: Job, name: str, moves: Mapping[JobId, GpuSet], draft: Draft) -> None:
        for job_id, gpus in moves.items():
            draft.put(job_id, Placement(gpus, gpus))
            target = next(iter(gpus)).node
            draft.say(job_id, f"goes on on {target}: {name} is cleared for job {job.id} ({job.gpus} GPUs)")
        draft.note(NAME, Verdict.PLANNED, moves)


class _Servers:
    """Free GPUs by node, as the draft has them: those that no job has, or is bound to."""

    def __init__(self, snapshot: Snapshot, draft: Draft, free: Mapping[str, list[GpuId]]) -> None:
        self._snapshot, self._draft, self._free = snapshot, draft, free
        self._on: dict[str, set[JobId]] = {}
        """Jobs that have GPUs of a node, or are bound to it."""
        for job_id, placement in draft.placements.items():
            for gpu in placement.allocation:
                self._on.setdefault(gpu.node, set()).add(job_id)

    def takes(self, job: Job) -> bool:
        """Whether a node takes the job as things stand."""
        return any(self._room(name, job, len(free)) for name, free in self._free.items())

    def _room(self, name: str, job: Job, gpus: int) -> bool:
        return gpus >= job.gpus and accepts(self._snapshot.nodes[name], job, job.gpus)

    def nearly_free(self, fraction: float) -> list[str]:
        """Nodes in use where so much is free, those with the most free GPUs first."""
        found = [
            name
            for name, free in self._free.items()
            if self._on.get(name) and len(free) >= fraction * len(self._snapshot.nodes[name].gpus)
        ]
        return sorted(found, key=lambda name: (-len(self._free[name]), name))

    def cleared(self, name: str, job: Job, stay: Set[JobId]) -> dict[JobId, GpuSet]:
        """Where jobs of this node go, so that it takes the job: as few as are needed, the smallest first.
        Empty: not all that would have to go may, and have a place. `stay`: jobs that must not go."""
        usable = sum(gpu.usable for gpu in self._snapshot.nodes[name].gpus)
        if not self._room(name, job, usable):
            return {}
        free = {other: list(gpus) for other, gpus in self._free.items() if self._on.get(other)}
        left, moves = len(self._free[name]), dict[JobId, GpuSet]()
        here = [self._snapshot.jobs[job_id] for job_id in self._on[name]]
        for other in sorted(here, key=lambda other: (other.gpus, other.id)):
            if left >= job.gpus:
                break
            outranks = other.priority_class > job.priority_class
            if outranks or other.id in stay or not self._is_alone_on(name, other):
                continue
            target = self._tightest(other, name, free)
            if target is not None:
                moves[other.id] = frozenset(free[target][: other.gpus])
                del free[target][: other.gpus]
                left += other.gpus
        return moves if left >= job.gpus else {}

    def _is_alone_on(self, name: str, job: Job) -> bool:
        """Whether the job runs on this node only, shares its GPUs with none, and may go elsewhere."""
        placement = self._draft.of(job.id)
        stays = placement == job.placement and not placement.shares_with and not job.switching
        return stays and job.may_stop and job.may_migrate and {gpu.node for gpu in placement.gpus} == {name}

    def _tightest(self, job: Job, source: str, free: Mapping[str, list[GpuId]]) -> str | None:
        """A node in use that has no more free GPUs than the one it leaves, and the same type."""
        nodes, most = self._snapshot.nodes, len(self._free[source])
        fits = [
            name
            for name, gpus in free.items()
            if name != source
            and job.gpus <= len(gpus) <= most
            and _types(nodes[name]) == _types(nodes[source])
            and accepts(nodes[name], job, job.gpus)
        ]
        return min(fits, key=lambda name: (len(free[name]), name), default=None)


def _types(node: Node) -> set[str]:
    return {gpu.model for gpu in node.gpus}


def _waits(job: Job, draft: Draft) -> bool:
    """Whether it waits for GPUs on one node, whichever that is."""
    free_to_choose = job.may_start and not job.placement.allocation and not draft.of(job.id).allocation
    return free_to_choose and job.gpus > 1 and job.request.nodes in (None, 1)
