# SPDX-License-Identifier: GPL-2.0-or-later
"""Where an arriving job goes: Algorithm 1 of the Gandiva paper (SPEC 1.8).

Jobs of one size share nodes (affinity), so that slices rotate cleanly. A new job gets a free GPU where
there is one, and shares where there is none, rather than queueing.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from controller.model import GpuSet, Job, natural_key, on_nodes
from controller.policies.placement.fleet import Fleet
from controller.policies.placement.fleet_node import FleetNode, pick_ordinals


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
    search = _Search(job, fleet, max_jobs_per_gpu)
    for find in (search.own_size, search.any_size) if any_size else (search.own_size,):
        for count in fleet.spreads.of(job):
            choice = find(count)
            if choice is not None:
                return choice
    return None


class _Search:
    """For one job, on so many nodes."""

    def __init__(self, job: Job, fleet: Fleet, max_jobs_per_gpu: int) -> None:
        self._job, self._fleet, self._max_jobs_per_gpu = job, fleet, max_jobs_per_gpu

    def own_size(self, count: int) -> Choice | None:
        """Free GPUs, else those of nodes that are kept for its size."""
        fleet, share, size = self._fleet, self._job.gpus // count, self._job.gpus
        stages: tuple[tuple[Stage, Iterable[FleetNode]], ...] = (
            (Stage.SAME_AFFINITY, fleet.shared_by(size, below=1.0)),
            (Stage.UNASSIGNED, fleet.unassigned()),
            (Stage.ANY_FREE, fleet.with_free(share)),
        )
        for stage, pool in stages if fleet.most_free() >= share else ():
            fitting = (node for node in pool if node.free >= share and node.takes(self._job, share))
            found = _common_ordinals(list(islice(fitting, 1) if count == 1 else fitting), count, share)
            if found is not None:
                group, ordinals = found
                return Choice(stage, on_nodes([node.name for node in group], ordinals))
        if count == 1:
            return self._share_one(fleet.shared_by(size, below=self._max_jobs_per_gpu), Stage.OVERSUBSCRIBE)
        return self._share_group(count, share)

    def any_size(self, count: int) -> Choice | None:
        """The least loaded nodes of one GPU model that have room, whatever runs there."""
        share = self._job.gpus // count
        least_loaded = sorted(self._fleet.nodes.values(), key=lambda node: (node.load, node.number))
        if count == 1:
            return self._share_one(least_loaded, Stage.ANY_SIZE)
        groups: dict[str, list[FleetNode]] = {}
        for node in least_loaded:
            if node.takes(self._job, share) and self._shared_ordinals([node], share) is not None:
                groups.setdefault(node.offer.model, []).append(node)
        for members in (group[:count] for group in groups.values() if len(group) >= count):
            ordinals = self._shared_ordinals(members, share)
            if ordinals is not None:
                return Choice(Stage.ANY_SIZE, on_nodes([node.name for node in members], ordinals))
        return None

    def _share_one(self, nodes: Iterable[FleetNode], stage: Stage) -> Choice | None:
        share = self._job.gpus
        for node in nodes:
            if not self._room(node, share) or not node.takes(self._job, share):
                continue
            if node.offer.unconfined:
                # A job that floats could use all GPUs: it shares as many as it needs.
                ordinals = self._shared_ordinals([node], share)
                if ordinals is not None:
                    return Choice(stage, on_nodes((node.name,), ordinals))
            elif len(node.open_ordinals()) == len(node.usable):
                return Choice(stage, node.usable_gpus)
        return None

    def _share_group(self, count: int, share: int) -> Choice | None:
        """Stage 4 for a gang over several nodes: exactly the GPUs of a gang of the same shape, so that the
        two take turns as a whole."""
        nodes, groups = self._fleet.nodes, dict[frozenset[str], float]()
        for node in self._fleet.shared_by(self._job.gpus, below=math.inf):
            for other in node.members if node.takes(self._job, share) else ():
                names = frozenset(name for name in self._fleet.places[other].nodes if name in nodes)
                if len(names) == count:
                    groups[names] = max(nodes[name].load for name in names)
        for names in sorted(groups, key=lambda g: (groups[g], [natural_key(n) for n in sorted(g)])):
            members = [nodes[name] for name in sorted(names, key=natural_key)]
            if all(node.takes(self._job, share) for node in members):
                ordinals = self._shared_ordinals(members, share)
                if ordinals is not None:
                    return Choice(Stage.OVERSUBSCRIBE, on_nodes(names, ordinals))
        return None

    def _shared_ordinals(self, members: Sequence[FleetNode], share: int) -> list[int] | None:
        """The `share` ordinals that the fewest jobs are bound to, usable on every member."""
        common = set[int].intersection(*(node.open_ordinals() for node in members))
        if len(common) < share or not all(self._room(node, share) for node in members):
            return None
        return sorted(sorted(common, key=lambda o: (members[0].bound_jobs[o], o))[:share])

    def _room(self, node: FleetNode, share: int) -> bool:
        return node.allocated + share <= self._max_jobs_per_gpu * len(node.usable)


def _common_ordinals(
    fitting: Sequence[FleetNode], count: int, share: int
) -> tuple[list[FleetNode], list[int]] | None:
    """The first `count` of these nodes that have `share` free ordinals in common, and one GPU model, and
    these ordinals.

    Greedy: each node joins the group when enough common ordinals remain. For whole nodes, the usual
    case, this is exact.
    """
    for first in range(len(fitting)):
        group = [fitting[first]]
        common = fitting[first].free_ordinals()
        if len(common) < share:
            continue
        for node in fitting[first + 1 :]:
            if len(group) == count:
                break
            theirs = set(node.free_ordinals())
            both = [o for o in common if o in theirs]
            if len(both) >= share and node.offer.model == group[0].offer.model:
                group.append(node)
                common = both
        if len(group) == count:
            return group, pick_ordinals(common, share)
    return None
