# SPDX-License-Identifier: GPL-2.0-or-later
"""All nodes with the jobs counted in, filed by what placement looks for, so that a job finds its place
without looking at every node."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from controller.model import GpuSet, JobId, Node, by_node, natural_key
from controller.policies.placement.fleet_node import FleetNode
from controller.policies.placement.groups import Spreads, same_offer


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is counted in."""

    nodes: tuple[str, ...]
    share: int
    """GPUs of the gang on each node."""
    exact: Mapping[str, tuple[int, ...]]
    """Ordinals per node; empty for a job that floats over its one node."""
    memory_bytes: int = 0
    """Host memory per node that Slurm does not know of yet."""
    on: GpuSet = frozenset()
    """GPUs a floating job is on just now."""


class Fleet:
    """The nodes, who is on them, and drawers of them in the orders of Algorithm 1's stages."""

    def __init__(self, nodes: Mapping[str, Node], affinity: Mapping[str, int]) -> None:
        self.members = defaultdict[str, dict[JobId, int]](dict)
        """By node, also by one that is gone: GPUs there of each job that is counted in."""
        self.nodes = {
            name: FleetNode(number, nodes[name], self.members[name])
            for number, name in enumerate(sorted(nodes, key=natural_key))
        }
        self.affinity = {name: size for name, size in affinity.items() if name in self.nodes}
        """Size of the gangs each node is kept for; nodes without jobs are not in it."""
        self.places: dict[JobId, Place] = {}
        self.spreads = Spreads((node.model, len(node.gpus)) for node in nodes.values())
        self._numbered = list(self.nodes.values())
        self._shared: dict[int, list[tuple[float, int]]] = {}
        self._unassigned: list[tuple[int, int]] = []
        self._free: list[tuple[int, int]] = []
        self._filed: dict[str, list[tuple[list[Any], tuple[float, int]]]] = {}
        """In which drawers each node is, under which keys."""
        self._stale = set(self.nodes)

    # -- who is where ---------------------------------------------------------------------------------

    def count_in(self, job_id: JobId, place: Place) -> None:
        """A job takes its place."""
        self.places[job_id] = place
        self._count(place, 1)
        for name in place.nodes:
            self.members[name][job_id] = place.share

    def count_out(self, job_id: JobId) -> None:
        """It leaves its place, if it has one."""
        place = self.places.pop(job_id, None)
        if place is not None:
            self._count(place, -1)
            for name in place.nodes:
                del self.members[name][job_id]

    def _count(self, place: Place, jobs: int) -> None:
        for name in place.nodes:
            node = self.nodes.get(name)
            if node is None:
                continue
            node.count(jobs, place.share, place.exact.get(name, ()), place.memory_bytes)
            for gpu in place.on:
                if gpu.node == name:
                    node.occupied[gpu.ordinal] += jobs
            self._stale.add(name)

    def all_free(self, gpus: GpuSet) -> bool:
        """Whether a job can be bound to exactly these, and have them at once."""
        for name, ordinals in by_node(gpus).items():
            node = self.nodes.get(name)
            if node is None or not node.offer.available or node.free < len(ordinals):
                return False
            if not {*ordinals} <= {*node.free_ordinals()} or any(node.occupied[o] for o in ordinals):
                return False
        return True

    def move(self, job_id: JobId, on: GpuSet) -> None:
        """A floating job is on other GPUs of its node now."""
        place = self.places[job_id]
        self.places[job_id] = replace(place, on=on)
        for gpus, change in ((place.on, -1), (on, 1)):
            for gpu in gpus:
                if gpu.node in self.nodes:
                    self.nodes[gpu.node].occupied[gpu.ordinal] += change

    def set_affinity(self, name: str, size: int | None) -> bool:
        """Keep a node for gangs of this size (None: for none). Whether that is news."""
        if self.affinity.get(name) == size:
            return False
        if size is None:
            del self.affinity[name]
        else:
            self.affinity[name] = size
        self._stale.add(name)
        return True

    def same_offer(self, name: str, node: Node | None) -> bool:
        """Whether a node offers the GPUs it offered when the fleet was made. If so, it is taken over; its
        free memory is brought up to date."""
        known = self.nodes.get(name)
        if known is None or node is None:
            return known is None and node is None
        old = known.offer
        if old is node:
            return True
        if not same_offer(old, node, "reason", "cpus", "unconfined"):
            return False
        known.offer = node
        if known.memory_free_bytes is not None and node.memory_free_bytes is not None:
            known.memory_free_bytes += node.memory_free_bytes - (old.memory_free_bytes or 0)
        return (old.memory_free_bytes is None) == (node.memory_free_bytes is None)

    # -- looking for room -----------------------------------------------------------------------------

    def with_free(self, share: int) -> Iterator[FleetNode]:
        """Nodes with so many free GPUs, the fullest first."""
        self._settle()
        for _, number in self._free[bisect_left(self._free, (share, -1)) :]:
            yield self._numbered[number]

    def unassigned(self) -> Iterator[FleetNode]:
        """Nodes without jobs, small ones first: the large stay whole for large gangs."""
        self._settle()
        return (self._numbered[number] for _, number in self._unassigned)

    def shared_by(self, size: int, below: float) -> Iterator[FleetNode]:
        """Nodes kept for gangs of this size with a load below this one, the least loaded first."""
        self._settle()
        for load, number in self._shared.get(size, ()):
            if load >= below:
                return
            yield self._numbered[number]

    def most_free(self) -> int:
        """Free GPUs of the emptiest node."""
        self._settle()
        return self._free[-1][0] if self._free else 0

    def _settle(self) -> None:
        for name in self._stale:
            for drawer, key in self._filed.get(name, ()):
                del drawer[bisect_left(drawer, key)]
            self._filed[name] = self._drawers_of(self.nodes[name])
            for drawer, key in self._filed[name]:
                insort(drawer, key)
        self._stale.clear()

    def _drawers_of(self, node: FleetNode) -> list[tuple[list[Any], tuple[float, int]]]:
        number, size = node.number, self.affinity.get(node.name)
        found: list[tuple[list[Any], tuple[float, int]]] = []
        if size is None and not node.members:
            found.append((self._unassigned, (len(node.usable), number)))
        else:
            # 0: it has jobs, before its affinity is settled.
            found.append((self._shared.setdefault(size or 0, []), (node.load, number)))
        if node.free > 0:
            found.append((self._free, (node.free, number)))
        return found


def settled_affinity(current: int | None, gangs: Iterable[tuple[int, int]]) -> int | None:
    """Affinity of a node after arrivals and departures (SPEC 1.1, gaps we fill).

    It keeps its affinity while a job of that size is there. One left with foreign sizes only takes the size
    that holds most of its GPUs; one left empty has none. `gangs`: (gang size, share here) of its jobs.
    """
    sizes: dict[int, int] = {}
    for size, share in gangs:
        sizes[size] = sizes.get(size, 0) + share
    if not sizes:
        return None
    return current if current in sizes else max(sizes, key=lambda size: (sizes[size], size))
