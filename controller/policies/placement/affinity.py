# SPDX-License-Identifier: GPL-2.0-or-later
"""Where an arriving job goes: Algorithm 1 of the Gandiva paper (SPEC 1.8).

Jobs of one size share nodes (affinity), so that slices rotate cleanly. A new job gets a free GPU where
there is one, and shares where there is none, rather than queueing.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.model import GpuSet, Job, JobId, natural_key, on_nodes
from controller.policies.placement.fleet import Fleet
from controller.policies.placement.fleet_node import FleetNode, pick_ordinals
from controller.policies.placement.groups import common_ordinals


class Stage(enum.Enum):
    """The line of Algorithm 1 that found the nodes, in words."""

    SAME_AFFINITY = "free GPUs beside jobs of its size"
    UNASSIGNED = "a node without jobs"
    ANY_FREE = "free GPUs beside jobs of other sizes"
    OVERSUBSCRIBE = "no GPU is free: shares the least loaded node of its size"
    ANY_SIZE = "no GPU is free, and it has waited long: shares the least loaded node of any size"
    """Not in the paper: where no job of its size is there to share with, a job that has waited long shares
    nodes of other sizes."""

    @property
    def shares(self) -> bool:
        """The job will take turns with others."""
        return self in (Stage.OVERSUBSCRIBE, Stage.ANY_SIZE)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a job goes and by which stage."""

    stage: Stage
    binding: GpuSet
    """What Slurm will be asked for: exact GPUs, or all GPUs of the node where several jobs share it and can
    be kept to those of their turn, so that slices can be fair (G6)."""


def get_nodes(job: Job, fleet: Fleet, max_jobs_per_gpu: int, *, any_size: bool = False) -> Choice | None:
    """The nodes for this job, or None: it queues (stage 5 of the paper). Changes nothing. `any_size`: it
    may share nodes with jobs of other sizes."""
    for share_any in (False, True) if any_size else (False,):
        for count in fleet.spreads.of(job):
            if count == 1:
                choice = _one_node(job, fleet, max_jobs_per_gpu, share_any)
            else:
                choice = _several_nodes(job, fleet, count, max_jobs_per_gpu, share_any)
            if choice is not None:
                return choice
    return None


def _one_node(job: Job, fleet: Fleet, max_jobs_per_gpu: int, share_any: bool) -> Choice | None:
    share = job.gpus
    if share_any:
        shared: Iterable[FleetNode] = sorted(fleet.nodes.values(), key=lambda s: (s.load, s.number))
        return _share_node(job, shared, max_jobs_per_gpu, Stage.ANY_SIZE)
    stages: tuple[tuple[Stage, Iterable[FleetNode]], ...] = (
        (Stage.SAME_AFFINITY, fleet.shared_by(share, below=1.0)),
        (Stage.UNASSIGNED, fleet.unassigned()),
        (Stage.ANY_FREE, fleet.with_free(share)),
    )
    if fleet.most_free() >= share:
        for stage, pool in stages:
            for node in pool:
                if node.free >= share and node.takes(job, share):
                    ordinals = pick_ordinals(node.free_ordinals(), share)
                    return Choice(stage, on_nodes((node.offer.name,), ordinals))
    shared = fleet.shared_by(share, below=max_jobs_per_gpu)
    return _share_node(job, shared, max_jobs_per_gpu, Stage.OVERSUBSCRIBE)


def _share_node(job: Job, nodes: Iterable[FleetNode], max_jobs_per_gpu: int, stage: Stage) -> Choice | None:
    for node in nodes:
        if not _room(node, job.gpus, max_jobs_per_gpu) or not node.takes(job, job.gpus):
            continue
        if node.offer.unconfined:
            # A job that floats could use all GPUs: it shares as many as it needs.
            ordinals = _shared_ordinals([node], job.gpus, max_jobs_per_gpu)
            if ordinals is not None:
                return Choice(stage, on_nodes((node.offer.name,), ordinals))
            continue
        bound, usable = node.bound_jobs, set(node.usable)
        if all(bound[g.id.ordinal] < g.shards for g in node.offer.gpus if g.id.ordinal in usable):
            return Choice(stage, node.usable_gpus)
    return None


def _several_nodes(
    job: Job, fleet: Fleet, count: int, max_jobs_per_gpu: int, share_any: bool
) -> Choice | None:
    share = job.gpus // count
    possible = [node for node in fleet.nodes.values() if node.takes(job, share)]
    if share_any:
        least_loaded = sorted(possible, key=lambda s: (s.load, s.number))
        return _share_nodes(least_loaded, count, share, max_jobs_per_gpu)
    same = [s for s in possible if fleet.affinity.get(s.offer.name) == job.gpus]
    same.sort(key=lambda s: (s.load, s.number))
    # Small nodes first: the large ones stay whole for large gangs.
    unassigned = [s for s in possible if s.offer.name not in fleet.affinity and not s.members]
    unassigned.sort(key=lambda s: (len(s.usable), s.number))
    tightest = sorted(possible, key=lambda s: (s.free, s.number))
    for stage, pool in (
        (Stage.SAME_AFFINITY, same),
        (Stage.UNASSIGNED, unassigned),
        (Stage.ANY_FREE, tightest),
    ):
        found = common_ordinals([s for s in pool if s.free >= share], count, share)
        if found is not None:
            group, ordinals = found
            return Choice(stage, on_nodes([s.offer.name for s in group], ordinals))
    return _share_group(job, same, fleet, count, max_jobs_per_gpu)


def _share_group(
    job: Job, same: Sequence[FleetNode], fleet: Fleet, count: int, max_jobs_per_gpu: int
) -> Choice | None:
    """Stage 4 for a gang over several nodes: exactly the GPUs of a gang of the same shape, so that the
    two take turns as a whole."""
    share = job.gpus // count
    nodes = fleet.nodes
    groups: dict[frozenset[str], float] = {}
    seen: set[JobId] = set()
    for node in same:
        for other in node.members:
            if other not in seen:
                seen.add(other)
                names = frozenset(name for name in fleet.places[other].nodes if name in nodes)
                if len(names) == count:
                    groups[names] = max(nodes[n].load for n in names)
    for names in sorted(groups, key=lambda g: (groups[g], [natural_key(n) for n in sorted(g)])):
        members = [nodes[n] for n in sorted(names, key=natural_key)]
        if all(s.takes(job, share) for s in members):
            ordinals = _shared_ordinals(members, share, max_jobs_per_gpu)
            if ordinals is not None:
                return Choice(Stage.OVERSUBSCRIBE, on_nodes(names, ordinals))
    return None


def _share_nodes(
    possible: Sequence[FleetNode], count: int, share: int, max_jobs_per_gpu: int
) -> Choice | None:
    """The least loaded nodes of one GPU model that have room, whatever runs there."""
    groups: dict[str, list[FleetNode]] = {}
    for node in possible:
        if _shared_ordinals([node], share, max_jobs_per_gpu) is not None:
            groups.setdefault(node.offer.model, []).append(node)
    for members in (group[:count] for group in groups.values() if len(group) >= count):
        ordinals = _shared_ordinals(members, share, max_jobs_per_gpu)
        if ordinals is not None:
            return Choice(Stage.ANY_SIZE, on_nodes([s.offer.name for s in members], ordinals))
    return None


def _shared_ordinals(members: Sequence[FleetNode], share: int, max_jobs_per_gpu: int) -> list[int] | None:
    """The `share` ordinals that the fewest jobs are bound to, usable on every member."""
    common = set(members[0].usable)
    for node in members:
        shards = {g.id.ordinal: g.shards for g in node.offer.gpus}
        common &= {o for o in node.usable if node.bound_jobs[o] < shards[o]}
        if not _room(node, share, max_jobs_per_gpu):
            return None
    if len(common) < share:
        return None
    return sorted(sorted(common, key=lambda o: (members[0].bound_jobs[o], o))[:share])


def _room(node: FleetNode, share: int, max_jobs_per_gpu: int) -> bool:
    return node.allocated + share <= max_jobs_per_gpu * len(node.usable)
