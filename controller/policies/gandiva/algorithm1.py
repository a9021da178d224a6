# SPDX-License-Identifier: GPL-2.0-or-later
"""Where an arriving job goes: Algorithm 1 of the Gandiva paper (SPEC 1.8).

Jobs of one size share servers (affinity), so that slices rotate cleanly. A new job gets a free GPU where
there is one, and shares where there is none, rather than queueing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.model import GpuId, GpuSet, Job, JobId
from controller.policies.base import natural_key
from controller.policies.placement import common_ordinals, node_counts
from controller.policies.servers import Server, candidates, exact_binding, refusal

Affinity = dict[str, int]
"""Size of the gangs that each server is kept for; servers without jobs are not in it."""


class Stage(enum.IntEnum):
    """The line of Algorithm 1 that found the servers."""

    SAME_AFFINITY = 1
    UNASSIGNED = 2
    ANY_FREE = 3
    OVERSUBSCRIBE = 4


STAGE_WORDS: Mapping[Stage, str] = {
    Stage.SAME_AFFINITY: "free GPUs beside jobs of its size",
    Stage.UNASSIGNED: "a server without jobs",
    Stage.ANY_FREE: "free GPUs beside jobs of other sizes",
    Stage.OVERSUBSCRIBE: "no GPU is free: shares the least loaded server of its size",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a job goes and by which stage."""

    stage: Stage
    nodes: tuple[str, ...]
    binding: GpuSet
    """What Slurm will be asked for: exact GPUs, or all GPUs of the server for a floating job."""

    @property
    def floating(self) -> bool:
        """Whether the binding leaves open which GPUs are used (set by over-subscription of one server)."""
        return self.stage is Stage.OVERSUBSCRIBE and len(self.nodes) == 1


def get_nodes(
    job: Job, servers: Mapping[str, Server], affinity: Affinity, max_jobs_per_gpu: int
) -> Choice | None:
    """The servers for this job, or None: it queues (stage 5). Changes nothing."""
    for count in node_counts(job, servers):
        choice = _get_group(job, servers, affinity, count, max_jobs_per_gpu)
        if choice is not None:
            return choice
    return None


def _get_group(
    job: Job, servers: Mapping[str, Server], affinity: Affinity, count: int, max_jobs_per_gpu: int
) -> Choice | None:
    share = job.gpus // count
    possible = candidates(job, servers, share)
    same = sorted(
        (s for s in possible if affinity.get(s.node.name) == job.gpus),
        key=lambda s: (s.load, natural_key(s.node.name)),
    )
    unassigned = sorted(
        (s for s in possible if s.node.name not in affinity and not s.members),
        # Small servers first: the large ones stay whole for large gangs.
        key=lambda s: (len(s.usable), natural_key(s.node.name)),
    )
    tightest = sorted(possible, key=lambda s: (s.free, natural_key(s.node.name)))
    for stage, pool in (
        (Stage.SAME_AFFINITY, same),
        (Stage.UNASSIGNED, unassigned),
        (Stage.ANY_FREE, tightest),
    ):
        found = common_ordinals([s for s in pool if s.free >= share], count, share)
        if found is not None:
            group, ordinals = found
            names = tuple(s.node.name for s in group)
            return Choice(stage, names, exact_binding(names, ordinals))
    if count == 1:
        return _share_one(same, share, max_jobs_per_gpu)
    return _share_group(job, same, servers, count, max_jobs_per_gpu)


def _share_one(same: Sequence[Server], share: int, max_jobs_per_gpu: int) -> Choice | None:
    """Stage 4 on one server: the job floats over all its GPUs, so that slices can be fair (G6)."""
    for server in same:
        shards = {g.id.ordinal: g.shards for g in server.node.gpus}
        bindable = tuple(o for o in server.usable if server.bound_jobs[o] < shards[o])
        if len(bindable) == len(server.usable) and _room(server, share, max_jobs_per_gpu):
            name = server.node.name
            return Choice(Stage.OVERSUBSCRIBE, (name,), frozenset(GpuId(name, o) for o in bindable))
    return None


def _share_group(
    job: Job, same: Sequence[Server], servers: Mapping[str, Server], count: int, max_jobs_per_gpu: int
) -> Choice | None:
    """Stage 4 for a gang over several servers: exactly the GPUs of a gang of the same shape, so that the
    two take turns as a whole."""
    share = job.gpus // count
    groups: dict[frozenset[str], float] = {}
    for server in same:
        for other in server.members:
            names = frozenset(s.node.name for s in servers.values() if other in s.members)
            if len(names) == count:
                groups[names] = max(servers[n].load for n in names)
    for names in sorted(groups, key=lambda g: (groups[g], [natural_key(n) for n in sorted(g)])):
        members = [servers[n] for n in sorted(names, key=natural_key)]
        if any(refusal(job, s, share) is not None for s in members):
            continue
        ordinals = _shared_ordinals(members, share, max_jobs_per_gpu)
        if ordinals is not None:
            ordered = tuple(s.node.name for s in members)
            return Choice(Stage.OVERSUBSCRIBE, ordered, exact_binding(ordered, ordinals))
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


def settle_affinity(
    affinity: Affinity, servers: Mapping[str, Server], gangs: Mapping[JobId, int]
) -> Affinity:
    """Affinity after departures (SPEC 1.1, gaps we fill).

    A server keeps its affinity while a job of that size is there. One left with foreign sizes only takes the
    size that holds most of its GPUs; one left empty has none. `gangs`: gang size by job id.
    """
    settled: Affinity = {}
    for name, server in servers.items():
        sizes: dict[int, int] = {}
        for job_id, share in server.members.items():
            size = gangs[job_id]
            sizes[size] = sizes.get(size, 0) + share
        if not sizes:
            continue
        current = affinity.get(name)
        settled[name] = current if current in sizes else max(sizes, key=lambda size: (sizes[size], size))
    return settled
