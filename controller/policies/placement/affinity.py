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
from controller.policies.placement.groups import common_ordinals
from controller.policies.placement.servers import Server, pick_ordinals, takes


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
                choice = _one_server(job, fleet, max_jobs_per_gpu, share_any)
            else:
                choice = _several_servers(job, fleet, count, max_jobs_per_gpu, share_any)
            if choice is not None:
                return choice
    return None


def _one_server(job: Job, fleet: Fleet, max_jobs_per_gpu: int, share_any: bool) -> Choice | None:
    share = job.gpus
    if share_any:
        shared: Iterable[Server] = sorted(fleet.servers.values(), key=lambda s: (s.load, s.number))
        return _share_server(job, shared, max_jobs_per_gpu, Stage.ANY_SIZE)
    stages: tuple[tuple[Stage, Iterable[Server]], ...] = (
        (Stage.SAME_AFFINITY, fleet.shared_by(share, below=1.0)),
        (Stage.UNASSIGNED, fleet.unassigned()),
        (Stage.ANY_FREE, fleet.with_free(share)),
    )
    if fleet.most_free() >= share:
        for stage, pool in stages:
            for server in pool:
                if server.free >= share and takes(job, server, share):
                    ordinals = pick_ordinals(server.free_ordinals(), share)
                    return Choice(stage, on_nodes((server.node.name,), ordinals))
    shared = fleet.shared_by(share, below=max_jobs_per_gpu)
    return _share_server(job, shared, max_jobs_per_gpu, Stage.OVERSUBSCRIBE)


def _share_server(job: Job, servers: Iterable[Server], max_jobs_per_gpu: int, stage: Stage) -> Choice | None:
    for server in servers:
        if not _room(server, job.gpus, max_jobs_per_gpu) or not takes(job, server, job.gpus):
            continue
        if server.node.unconfined:
            # A job that floats could use all GPUs: it shares as many as it needs.
            ordinals = _shared_ordinals([server], job.gpus, max_jobs_per_gpu)
            if ordinals is not None:
                return Choice(stage, on_nodes((server.node.name,), ordinals))
            continue
        bound, usable = server.bound_jobs, set(server.usable)
        if all(bound[g.id.ordinal] < g.shards for g in server.node.gpus if g.id.ordinal in usable):
            return Choice(stage, server.usable_gpus)
    return None


def _several_servers(
    job: Job, fleet: Fleet, count: int, max_jobs_per_gpu: int, share_any: bool
) -> Choice | None:
    share = job.gpus // count
    possible = [server for server in fleet.servers.values() if takes(job, server, share)]
    if share_any:
        least_loaded = sorted(possible, key=lambda s: (s.load, s.number))
        return _share_servers(least_loaded, count, share, max_jobs_per_gpu)
    same = [s for s in possible if fleet.affinity.get(s.node.name) == job.gpus]
    same.sort(key=lambda s: (s.load, s.number))
    # Small nodes first: the large ones stay whole for large gangs.
    unassigned = [s for s in possible if s.node.name not in fleet.affinity and not s.members]
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
            return Choice(stage, on_nodes([s.node.name for s in group], ordinals))
    return _share_group(job, same, fleet, count, max_jobs_per_gpu)


def _share_group(
    job: Job, same: Sequence[Server], fleet: Fleet, count: int, max_jobs_per_gpu: int
) -> Choice | None:
    """Stage 4 for a gang over several nodes: exactly the GPUs of a gang of the same shape, so that the
    two take turns as a whole."""
    share = job.gpus // count
    servers = fleet.servers
    groups: dict[frozenset[str], float] = {}
    seen: set[JobId] = set()
    for server in same:
        for other in server.members:
            if other not in seen:
                seen.add(other)
                names = frozenset(name for name in fleet.places[other].nodes if name in servers)
                if len(names) == count:
                    groups[names] = max(servers[n].load for n in names)
    for names in sorted(groups, key=lambda g: (groups[g], [natural_key(n) for n in sorted(g)])):
        members = [servers[n] for n in sorted(names, key=natural_key)]
        if all(takes(job, s, share) for s in members):
            ordinals = _shared_ordinals(members, share, max_jobs_per_gpu)
            if ordinals is not None:
                return Choice(Stage.OVERSUBSCRIBE, on_nodes(names, ordinals))
    return None


def _share_servers(
    possible: Sequence[Server], count: int, share: int, max_jobs_per_gpu: int
) -> Choice | None:
    """The least loaded nodes of one GPU model that have room, whatever runs there."""
    groups: dict[str, list[Server]] = {}
    for server in possible:
        if _shared_ordinals([server], share, max_jobs_per_gpu) is not None:
            groups.setdefault(server.node.model, []).append(server)
    for members in (group[:count] for group in groups.values() if len(group) >= count):
        ordinals = _shared_ordinals(members, share, max_jobs_per_gpu)
        if ordinals is not None:
            return Choice(Stage.ANY_SIZE, on_nodes([s.node.name for s in members], ordinals))
    return None


def _shared_ordinals(members: Sequence[Server], share: int, max_jobs_per_gpu: int) -> list[int] | None:
    """The `share` ordinals that the fewest jobs are bound to, usable on every member."""
    common = set(members[0].usable)
    for server in members:
        shards = {g.id.ordinal: g.shards for g in server.node.gpus}
        common &= {o for o in server.usable if server.bound_jobs[o] < shards[o]}
        if not _room(server, share, max_jobs_per_gpu):
            return None
    if len(common) < share:
        return None
    return sorted(sorted(common, key=lambda o: (members[0].bound_jobs[o], o))[:share])


def _room(server: Server, share: int, max_jobs_per_gpu: int) -> bool:
    return server.allocated + share <= max_jobs_per_gpu * len(server.usable)
