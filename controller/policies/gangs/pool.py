# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs of the whole cluster, kept so that a gang finds its place without looking at every node.

One integer per node has a bit for each free GPU, and nodes are filed by how many they have.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Set

from controller.model import GpuId, GpuSet, Job, Node
from controller.policies.base import natural_key
from controller.policies.servers import gpu_usable

_ALIGNED_UP_TO = 16
"""Larger "nodes" are pools of GPUs without a topology (counting placement in simulation)."""
_TRIES = 8
"""First nodes that are tried for a gang over several nodes."""


class Slot:
    """One node."""

    __slots__ = ("free", "free_count", "held", "ids", "node", "number", "sound", "usable")

    def __init__(self, number: int, node: Node) -> None:
        self.number = number
        self.node = node
        highest = max((gpu.id.ordinal for gpu in node.gpus), default=-1)
        self.ids = tuple(GpuId(node.name, ordinal) for ordinal in range(highest + 1))
        self.sound = sound_mask(node)
        self.usable = usable_mask(node)
        self.held = [0] * (highest + 1)
        self.free = self.usable
        self.free_count = self.usable.bit_count()


def usable_mask(node: Node) -> int:
    """Bits of the GPUs that Gandiva jobs may use now; 0 when the node is not available."""
    return sound_mask(node) if node.available else 0


def sound_mask(node: Node) -> int:
    """Those that jobs may use which Slurm has bound to them: also on a node where it would start nothing (one
    that is being drained), but not where the agent does not answer, which shows no GPU as healthy."""
    mask = 0
    for gpu in node.gpus:
        if gpu_usable(gpu):
            mask |= 1 << gpu.id.ordinal
    return mask


class GpuPool:
    """Who holds what is told with `take` and `give`; `find` looks for room and changes nothing.

    A GPU that several jobs hold (one is leaving it, another waits for it) is free when the last has given
    it back.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        names = sorted(nodes, key=natural_key)
        self._slots = [Slot(i, nodes[name]) for i, name in enumerate(names)]
        self._by_name = {slot.node.name: slot for slot in self._slots}
        self.largest = max((len(slot.ids) for slot in self._slots), default=0)
        self._filed: list[list[int]] = [[] for _ in range(self.largest + 1)]
        for slot in self._slots:
            self._filed[slot.free_count].append(slot.number)
        self.usable_count = sum(slot.free_count for slot in self._slots)
        self.free_count = self.usable_count
        self.closed = frozenset(slot.node.name for slot in self._slots if slot.sound and not slot.usable)
        """Nodes where nothing starts, but what is there may go on."""
        self._switches = len({slot.node.switch for slot in self._slots})

    @property
    def names(self) -> Set[str]:
        """Of all nodes."""
        return self._by_name.keys()

    def same_gpus(self, name: str, node: Node | None) -> bool:
        """Whether this node offers what it offered when the pool was made."""
        slot = self._by_name.get(name)
        if slot is None or node is None:
            return slot is None and node is None
        if slot.node is node:
            return True
        if (
            slot.node.available != node.available
            or slot.sound != sound_mask(node)
            or len(slot.node.gpus) != len(node.gpus)
            or slot.node.switch != node.switch
        ):
            return False
        slot.node = node
        return True

    def take(self, gpus: Iterable[GpuId]) -> None:
        """One more job holds these GPUs. GPUs of nodes that are gone are ignored."""
        taken: dict[Slot, int] = {}
        for node, ordinal in gpus:
            slot = self._by_name.get(node)
            if slot is not None and ordinal < len(slot.held):
                slot.held[ordinal] += 1
                if slot.held[ordinal] == 1:
                    taken[slot] = taken.get(slot, 0) | 1 << ordinal
        for slot, mask in taken.items():
            self._file(slot, slot.free & ~mask)

    def give(self, gpus: Iterable[GpuId]) -> None:
        """One job fewer holds them."""
        given: dict[Slot, int] = {}
        for node, ordinal in gpus:
            slot = self._by_name.get(node)
            if slot is not None and ordinal < len(slot.held):
                slot.held[ordinal] -= 1
                if slot.held[ordinal] == 0:
                    given[slot] = given.get(slot, 0) | 1 << ordinal
        for slot, mask in given.items():
            self._file(slot, slot.free | mask & slot.usable)

    def _file(self, slot: Slot, free: int) -> None:
        if free == slot.free:
            return
        drawer, count = self._filed[slot.free_count], free.bit_count()
        del drawer[bisect_left(drawer, slot.number)]
        self.free_count += count - slot.free_count
        slot.free, slot.free_count = free, count
        insort(self._filed[count], slot.number)

    def all_free(self, gpus: Iterable[GpuId]) -> bool:
        """Whether nobody holds any of these."""
        return all(
            (slot := self._by_name.get(gpu.node)) is not None and slot.free >> gpu.ordinal & 1 for gpu in gpus
        )

    def all_idle(self, gpus: Iterable[GpuId]) -> bool:
        """Whether nobody holds any of these, on whatever node: for jobs that Slurm has bound to them."""
        return all(
            (slot := self._by_name.get(gpu.node)) is not None
            and slot.sound >> gpu.ordinal & 1
            and not slot.held[gpu.ordinal]
            for gpu in gpus
        )

    # -- looking for room -----------------------------------------------------------------------------

    def find(self, job: Job, *, consolidated: bool) -> GpuSet | None:
        """Free GPUs for the whole gang, on the fullest nodes that have room (lowest number first).

        `consolidated`: on as few nodes as its size allows, under one switch, or not at all; else on as few
        as can be had. A gang over several nodes gets the same GPUs on each, evenly, since Slurm's GRES are
        asked for per node.
        """
        if job.request.gpus > self.free_count:
            return None
        if job.request.gpus == 1 and job.request.nodes in (None, 1):
            return self._one_node(job, 1)
        for count in self._node_counts(job, consolidated):
            share = job.gpus // count
            found = self._one_node(job, share) if count == 1 else self._nodes(job, count, share, consolidated)
            if found is not None:
                return found
        return None

    def _node_counts(self, job: Job, consolidated: bool) -> Iterator[int]:
        wanted = job.request.nodes
        if wanted is not None:
            if job.gpus % wanted == 0 and job.gpus // wanted <= self.largest:
                yield wanted
            return
        if not self.largest:
            return
        for count in range(-(-job.gpus // self.largest), min(job.gpus, len(self._slots)) + 1):
            if job.gpus % count == 0:
                yield count
                if consolidated:
                    return

    def _one_node(self, job: Job, share: int) -> GpuSet | None:
        for free_count in range(share, self.largest + 1):
            for number in self._filed[free_count]:
                slot = self._slots[number]
                if _accepts(slot.node, job):
                    return frozenset([slot.ids[o] for o in _pick(slot.free, share, len(slot.ids))])
        return None

    def _nodes(self, job: Job, count: int, share: int, consolidated: bool) -> GpuSet | None:
        fitting = [
            slot
            for free_count in range(share, self.largest + 1)
            for slot in map(self._slots.__getitem__, self._filed[free_count])
            if _accepts(slot.node, job)
        ]
        groups: Iterable[list[Slot]] = [fitting]
        if consolidated and self._switches > 1:
            by_switch: dict[str, list[Slot]] = {}
            for slot in fitting:
                by_switch.setdefault(slot.node.switch, []).append(slot)
            groups = by_switch.values()
        for group in groups:
            found = _common(group, count, share)
            if found is not None:
                return found
        return None


def _common(fitting: list[Slot], count: int, share: int) -> GpuSet | None:
    """`share` GPUs of the same numbers on `count` of these nodes. Greedy; exact for whole nodes."""
    for first in range(min(len(fitting) - count + 1, _TRIES)):
        members = [fitting[first]]
        mask = fitting[first].free
        for slot in fitting[first + 1 :]:
            both = mask & slot.free
            if both.bit_count() >= share:
                members.append(slot)
                mask = both
                if len(members) == count:
                    ordinals = _pick(mask, share, len(members[0].ids))
                    return frozenset([member.ids[o] for member in members for o in ordinals])
    return None


def _pick(free: int, count: int, size: int) -> list[int]:
    """`count` of the free GPUs: an aligned block, which shares switches and bridges, where there is one."""
    if count == size == free.bit_count():
        return list(range(size))
    if 1 < count <= size <= _ALIGNED_UP_TO:
        block = (1 << count) - 1
        for start in range(0, size - count + 1, count):
            if free >> start & block == block:
                return list(range(start, start + count))
    ordinals = []
    for _ in range(count):
        lowest = free & -free
        ordinals.append(lowest.bit_length() - 1)
        free ^= lowest
    return ordinals


def _accepts(node: Node, job: Job) -> bool:
    """Whether the job may run there, GPUs aside. (Unavailable nodes have no free GPU in the pool.)"""
    request = job.request
    if request.gpu_types and not any(gpu.model in request.gpu_types for gpu in node.gpus):
        return False
    if node.name in job.excluded_nodes or (job.required_nodes and node.name not in job.required_nodes):
        return False
    if node.cpus and job.cpus_per_node > node.cpus:
        return False
    free_bytes = node.memory_free_bytes
    return free_bytes is None or job.memory_per_node_bytes <= free_bytes
