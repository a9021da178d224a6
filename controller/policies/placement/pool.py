# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs of the whole cluster, kept so that a gang finds its place without looking at every node.

One integer per node has a bit for each free GPU, and nodes are filed by how many they have. Gangs come and go
as such integers too, so that no step is taken for each GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from controller.model import GpuId, GpuSet, Job, Node, natural_key

_ALIGNED_UP_TO = 16
"""Larger "nodes" are pools of GPUs without a topology (counting placement in simulation)."""
_MANY = 16
"""From so many holdings on they are put together first."""
_TRIES = 8
"""First nodes that are tried for a gang over several nodes."""


class Slot:
    """One node."""

    __slots__ = ("bit", "filed", "free", "free_count", "ids", "more", "node", "sound", "taken", "usable")

    def __init__(self, number: int, node: Node) -> None:
        self.bit = 1 << number
        """Its own among the nodes of a drawer."""
        self.node = node
        highest = max((gpu.id.ordinal for gpu in node.gpus), default=-1)
        self.ids = tuple(GpuId(node.name, ordinal) for ordinal in range(highest + 1))
        self.sound = sound_mask(node)
        self.usable = usable_mask(node)
        self.taken = 0
        """Held by somebody."""
        self.more: dict[int, int] = {}
        """By bit: by how many beyond the first."""
        self.free = self.usable
        self.free_count = self.filed = self.usable.bit_count()

    def gpus(self, mask: int) -> Iterable[GpuId]:
        """Those of these bits."""
        first, count = (mask & -mask).bit_length() - 1, mask.bit_count()
        if mask >> first == (1 << count) - 1:
            return self.ids[first : first + count]
        return [self.ids[bit.bit_length() - 1] for bit in _bits(mask)]


Holding = tuple[tuple[Slot, int], ...]
"""GPUs, as bits of their nodes."""


def _bits(mask: int) -> Iterator[int]:
    """Each alone, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest


def _together(holdings: Iterable[Holding]) -> Iterator[Holding]:
    """All in one, where there may be thousands; apart from it those that share GPUs with one before them."""
    masks: dict[Slot, int] = {}
    for holding in holdings:
        for slot, mask in holding:
            known = masks.get(slot, 0)
            if known & mask:
                yield ((slot, mask),)
            else:
                masks[slot] = known | mask
    yield tuple(masks.items())


def usable_mask(node: Node) -> int:
    """Bits of the GPUs that Gandiva jobs may use now; 0 when the node is not available."""
    return sound_mask(node) if node.available else 0


def sound_mask(node: Node) -> int:
    """Those that jobs may use which Slurm has bound to them: also on a node where it would start nothing (one
    that is being drained), but not where the agent does not answer, which shows no GPU as healthy."""
    mask = 0
    for gpu in node.gpus:
        if gpu.usable:
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
        self._drawers: dict[int, int] = {}
        """Nodes by how many GPUs are free there, a bit for each."""
        self._counts = 0
        """Which drawers have something in them, a bit for each."""
        self._unfiled: set[Slot] = set()
        """Nodes to be filed anew when somebody looks: most changes are taken back or followed by others."""
        for slot in self._slots:
            self._put(slot)
        self.free_count = sum(slot.free_count for slot in self._slots)
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
            or len(slot.node.gpus) != len(node.gpus)
            or slot.node.switch != node.switch
            or slot.sound != sound_mask(node)
        ):
            return False
        slot.node = node
        return True

    def holding(self, gpus: Iterable[GpuId]) -> Holding:
        """These GPUs as `take` and `give` want them. GPUs of nodes that are gone are left out."""
        masks: dict[Slot, int] = {}
        for node, ordinal in gpus:
            slot = self._by_name.get(node)
            if slot is not None and ordinal < len(slot.ids):
                masks[slot] = masks.get(slot, 0) | 1 << ordinal
        return tuple(masks.items())

    @staticmethod
    def gpus(holding: Holding) -> GpuSet:
        """The other way."""
        if len(holding) == 1:
            slot, mask = holding[0]
            return frozenset(slot.gpus(mask))
        return frozenset([gpu for slot, mask in holding for gpu in slot.gpus(mask)])

    def take(self, holding: Holding) -> None:
        """One more job holds these GPUs."""
        for slot, mask in holding:
            if slot.taken & mask:
                for bit in _bits(slot.taken & mask):
                    slot.more[bit] = slot.more.get(bit, 0) + 1
            slot.taken |= mask
            self._change(slot, slot.free & ~mask)

    def give(self, holding: Holding) -> None:
        """One job fewer holds them."""
        for slot, mask in holding:
            if slot.more:
                for bit in [bit for bit in _bits(mask) if bit in slot.more]:
                    mask ^= bit
                    slot.more[bit] -= 1
                    if not slot.more[bit]:
                        del slot.more[bit]
            slot.taken ^= mask
            self._change(slot, slot.free | mask & slot.usable)

    def take_all(self, holdings: Collection[Holding]) -> None:
        """`take` each of these."""
        for holding in holdings if len(holdings) < _MANY else _together(holdings):
            self.take(holding)

    def give_all(self, holdings: Collection[Holding]) -> None:
        """`give` each of these."""
        for holding in holdings if len(holdings) < _MANY else _together(holdings):
            self.give(holding)

    def _change(self, slot: Slot, free: int) -> None:
        count = free.bit_count()
        self.free_count += count - slot.free_count
        slot.free, slot.free_count = free, count
        self._unfiled.add(slot)

    def _put(self, slot: Slot) -> None:
        """Into the drawer it belongs into."""
        count = slot.filed = slot.free_count
        drawer = self._drawers.get(count, 0)
        if not drawer:
            self._counts |= 1 << count
        self._drawers[count] = drawer | slot.bit

    def _file(self) -> None:
        """Every node into its drawer."""
        for slot in self._unfiled:
            if slot.filed != slot.free_count:
                drawer = self._drawers[slot.filed] ^ slot.bit
                self._drawers[slot.filed] = drawer
                if not drawer:
                    self._counts ^= 1 << slot.filed
                self._put(slot)
        self._unfiled.clear()

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
            and not slot.taken >> gpu.ordinal & 1
            for gpu in gpus
        )

    def any_room(self, gpus: Iterable[GpuId], share: int) -> bool:
        """Whether a node of one of these GPUs has so many free ones."""
        return any(
            self._by_name[node].free_count >= share for node in {gpu.node for gpu in gpus} & self.names
        )

    # -- looking for room -----------------------------------------------------------------------------

    def find(self, job: Job, *, consolidated: bool) -> Holding | None:
        """Free GPUs for the whole gang, on the fullest nodes that have room (lowest number first).

        `consolidated`: on as few nodes as its size allows, under one switch, or not at all; else on as few
        as can be had. A gang over several nodes gets the same GPUs on each, evenly, since Slurm's GRES are
        asked for per node.
        """
        if job.gpus > self.free_count:
            return None
        if job.gpus == 1 and job.request.nodes in (None, 1):
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

    def _with_room(self, share: int) -> Iterator[Slot]:
        """Nodes with so many free GPUs, the fullest first, the lowest number first."""
        self._file()
        slots, counts = self._slots, self._counts >> share << share
        while counts:
            count = counts & -counts
            counts ^= count
            nodes = self._drawers[count.bit_length() - 1]
            while nodes:
                node = nodes & -nodes
                nodes ^= node
                yield slots[node.bit_length() - 1]

    def _one_node(self, job: Job, share: int) -> Holding | None:
        for slot in self._with_room(share):
            if _accepts(slot.node, job):
                return ((slot, _pick(slot.free, share, len(slot.ids))),)
        return None

    def _nodes(self, job: Job, count: int, share: int, consolidated: bool) -> Holding | None:
        fitting = [slot for slot in self._with_room(share) if _accepts(slot.node, job)]
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


def _common(fitting: list[Slot], count: int, share: int) -> Holding | None:
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
                    picked = _pick(mask, share, len(members[0].ids))
                    return tuple([(member, picked) for member in members])
    return None


def _pick(free: int, count: int, size: int) -> int:
    """`count` of the free GPUs: an aligned block, which shares switches and bridges, where there is one; else
    the lowest."""
    block = (1 << count) - 1
    if 1 < count <= size <= _ALIGNED_UP_TO:
        for start in range(0, size - count + 1, count):
            if free >> start & block == block:
                return block << start
    first = (free & -free).bit_length() - 1
    if free >> first & block == block:
        return block << first
    rest = free
    for _ in range(count):
        rest &= rest - 1
    return free ^ rest


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
