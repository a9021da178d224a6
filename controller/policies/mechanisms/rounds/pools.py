# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster's GPUs by type."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from controller.model import GpuId, GpuSet, Job, JobId, Node, Placement, Why
from controller.policies.mechanisms.rounds.kinds import is_scattered, scattered, type_of_kind
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.row import is_guest
from controller.policies.placement.draft import Room
from controller.policies.placement.gangs import find, find_own, find_scattered, held, own_gpus, spreads
from controller.policies.placement.pool import GpuPool


class Pools(Room):
    """Who holds what, in one pool for each type. Implements `Room` and `Held`."""

    def __init__(self, nodes: Mapping[str, Node], members: Mapping[JobId, Member]) -> None:
        """`members`: all jobs; it follows what is observed."""
        self._members = members
        self._whole = GpuPool(nodes)
        """What the nodes offer. Who holds what is in those of the types."""
        self._type_of = {gpu.id: gpu.model for node in nodes.values() for gpu in node.gpus}
        self.types = tuple(sorted(set(self._type_of.values())))
        self._pools = {t: GpuPool(_of_type(nodes, t)) for t in self.types}
        self._counted: dict[JobId, GpuSet] = {}
        """What the pools count as taken by each."""
        self._accepting: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Types by what matters of a job."""
        self._in_vain: set[tuple[object, ...]] = set()
        """What matters of jobs that find no place as things stand."""

    @property
    def closed(self) -> Collection[str]:
        """Nodes where nothing starts."""
        return self._whole.closed

    def same(self, nodes: Mapping[str, Node], changed: frozenset[str]) -> bool:
        """Whether these nodes offer what they offered. If so, they are taken over."""
        if not all(self._whole.same_gpus(name, nodes.get(name)) for name in changed):
            return False
        self._accepting.clear()
        self._in_vain.clear()
        for name in changed & nodes.keys():
            if any(self._type_of.get(gpu.id) != gpu.model for gpu in nodes[name].gpus):
                return False
            for gpu_type, pool in self._pools.items():
                part = _of_type({name: nodes[name]}, gpu_type)
                if part and not pool.same_gpus(name, part[name]):
                    return False
        return True

    # -- who holds what -------------------------------------------------------------------------------

    def change(self, job_id: JobId, before: Placement, after: Placement) -> None:
        """Guests are counted with their hosts."""
        given = self._counted.pop(job_id, frozenset())
        member = self._members.get(job_id)
        promised = after.allocation & member.job.promised if member else frozenset()
        taken = frozenset() if is_guest(job_id, after, self._members) else after.gpus or promised
        if taken:
            self._counted[job_id] = taken
        if given == taken:
            return
        if given:
            self._in_vain.clear()
        for gpu_type, part in self._by_type(given):
            self._pools[gpu_type].give(part)
        for gpu_type, part in self._by_type(taken):
            self._pools[gpu_type].take(part)

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned."""
        return held(self._whole, job)

    def _by_type(self, gpus: GpuSet) -> list[tuple[str, GpuSet]]:
        """Those of known types."""
        types = set(map(self._type_of.get, gpus))
        if len(types) < 2:
            return [(t, gpus) for t in types if t is not None]
        return [(t, frozenset(g for g in gpus if self._type_of.get(g) == t)) for t in types if t is not None]

    # -- what is free ---------------------------------------------------------------------------------

    def workers(self) -> dict[str, int]:
        """GPUs that jobs may start on, by type, free or not."""
        return {t: sum(s.usable.bit_count() for s in pool.slots) for t, pool in self._pools.items()}

    def free(self) -> dict[str, int]:
        """By type."""
        return {gpu_type: pool.free_count for gpu_type, pool in self._pools.items()}

    def type_of(self, gpus: GpuSet) -> str:
        """By the first of them. Empty: none, or not known."""
        return self._type_of.get(min(gpus), "") if gpus else ""

    def find(self, job: Job, gpu_type: str) -> GpuSet | None:
        """GPUs of the type, or kind, for the job now; where Slurm has bound it, those that it is bound to."""
        if job.placement.allocation:
            return find_own(self, job)
        sought = self.sought(job, gpu_type)
        if sought in self._in_vain:
            return None
        pool = self._pools[type_of_kind(gpu_type)]
        if is_scattered(gpu_type):
            found = find_scattered(pool, job)
        else:
            found = find(pool, job, consolidated=self._distinguishes(job, gpu_type))
        if found is None:
            self._in_vain.add(sought)
        return found

    def sought(self, job: Job, gpu_type: str) -> tuple[object, ...]:
        """All that `find` looks at of a job that Slurm has not bound: equal jobs find equal places."""
        return (gpu_type, self._distinguishes(job, gpu_type), *job.signature)

    def _distinguishes(self, job: Job, gpu_type: str) -> bool:
        """Whether the type means as few nodes as the gang needs."""
        return scattered(gpu_type) in self._members[job.id].types

    def least_nodes(self, job: Job, gpu_type: str) -> int:
        """The fewest nodes of the type that the gang needs. 0: it can be spread in no other way."""
        counts = spreads(self._pools[gpu_type], job, consolidated=False) if gpu_type in self._pools else []
        return counts[0] if len(counts) > 1 else 0

    def only_closed(self, job: Job) -> bool:
        """Whether all GPUs that it has, or goes on with, are on nodes where nothing starts."""
        own = (job.placement.gpus or own_gpus(job)) if self.closed else ()
        return bool(own) and all(gpu.node in self.closed for gpu in own)

    def partly_closed(self, job: Job) -> bool:
        """Whether it goes on with a GPU on a node where nothing starts."""
        return any(gpu.node in self.closed for gpu in own_gpus(job))

    def all_idle(self, gpus: Iterable[GpuId]) -> bool:
        """Whether no job holds any of these."""
        return all(pool is not None and pool.all_idle((gpu,)) for gpu, pool in self._with_pools(gpus))

    def all_free(self, gpus: Iterable[GpuId]) -> bool:
        """Whether a job may start on all of these."""
        return all(pool is not None and pool.all_free((gpu,)) for gpu, pool in self._with_pools(gpus))

    def _with_pools(self, gpus: Iterable[GpuId]) -> Iterator[tuple[GpuId, GpuPool | None]]:
        return ((gpu, self._pools.get(self._type_of.get(gpu, ""))) for gpu in gpus)

    # -- what takes a job -----------------------------------------------------------------------------

    def accepting(self, job: Job) -> tuple[str, ...]:
        """Types with a node that could take the job, whatever runs there now."""
        kind = job.signature
        found = self._accepting.get(kind)
        if found is None:
            found = tuple(t for t, pool in self._pools.items() if pool.why_not(job) is None)
            self._accepting[kind] = found
        return found

    def why_nowhere(self, job: Job) -> Why | None:
        """One sentence for a job that no node can take; None where one can."""
        return None if job.placement.allocation else self._whole.why_not(job)


def _of_type(nodes: Mapping[str, Node], gpu_type: str) -> dict[str, Node]:
    """The nodes with such GPUs, and with these alone."""
    found: dict[str, Node] = {}
    for name, node in nodes.items():
        gpus = tuple(gpu for gpu in node.gpus if gpu.model == gpu_type)
        if gpus:
            found[name] = node if len(gpus) == len(node.gpus) else replace(node, gpus=gpus)
    return found
