# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs of the whole cluster, kept so that a gang finds its place without looking at every node.

One integer per node, a mask, has a bit for each free GPU (bit i: the GPU with ordinal i), and nodes are filed
by how many they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.model import GpuId, GpuSet, Job, Node, Why, natural_key
from controller.policies.placement.groups import Spreads
from controller.policies.placement.masks import bits, sound_mask


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
        self.usable = self.sound if node.available else 0
        """GPUs that jobs may start on."""
        self.taken = 0
        """Held by a job."""
        self.more: dict[int, int] = {}
        """By bit: by how many jobs beyond the first."""
        self.free = self.usable
        self.free_count = self.filed = self.usable.bit_count()

    def gpus(self, mask: int) -> GpuSet:
        return frozenset(self.ids[bit.bit_length() - 1] for bit in bits(mask))


class GpuPool:
    """Who holds what is told with `take` and `give`.

    A GPU that several jobs hold (one is leaving it, another waits for it) is free when the last has given
    it back.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        names = sorted(nodes, key=natural_key)
        self.slots = [Slot(i, nodes[name]) for i, name in enumerate(names)]
        self._by_name = {slot.node.name: slot for slot in self.slots}
        self.spreads = Spreads((node.model, len(node.gpus)) for node in nodes.values())
        self._drawers: dict[int, int] = {}
        """Nodes by how many GPUs are free there, a bit for each."""
        self._counts = 0
        """Which drawers have something in them, a bit for each."""
        self._unfiled: set[Slot] = set()
        """Nodes to be filed anew at the next look: most changes are taken back or followed by others."""
        for slot in self.slots:
            self._put(slot)
        self.free_count = sum(slot.free_count for slot in self.slots)
        self.closed = frozenset(slot.node.name for slot in self.slots if slot.sound and not slot.usable)
        """Nodes where nothing starts, but what is there may go on."""

    def same_gpus(self, name: str, node: Node | None) -> bool:
        """Whether this node offers what it offered when the pool was made. If so, it is taken over."""
        slot = self._by_name.get(name)
        if slot is None or node is None:
            return slot is None and node is None
        if (
            slot.node.available != node.available
            or len(slot.node.gpus) != len(node.gpus)
            or (slot.node.switch, slot.node.model) != (node.switch, node.model)
            or slot.sound != sound_mask(node)
        ):
            return False
        slot.node = node
        return True

    def node(self, name: str) -> Node | None:
        slot = self._by_name.get(name)
        return slot.node if slot is not None else None

    def why_not(self, job: Job) -> Why | None:
        """One sentence for a job that no node can take, whatever runs there; None where one can."""
        return self.spreads.nowhere(job, ((s.node, s.sound.bit_count(), None) for s in self.slots))

    # -- giving and taking ----------------------------------------------------------------------------

    def _masks(self, gpus: Iterable[GpuId]) -> dict[Slot, int]:
        """By node. GPUs of nodes that are gone are left out."""
        masks: dict[Slot, int] = {}
        for node, ordinal in gpus:
            slot = self._by_name.get(node)
            if slot is not None and ordinal < len(slot.ids):
                masks[slot] = masks.get(slot, 0) | 1 << ordinal
        return masks

    def take(self, gpus: Iterable[GpuId]) -> None:
        """One more job holds these GPUs."""
        for slot, mask in self._masks(gpus).items():
            for bit in bits(slot.taken & mask):
                slot.more[bit] = slot.more.get(bit, 0) + 1
            slot.taken |= mask
            self._change(slot, slot.free & ~mask)

    def give(self, gpus: Iterable[GpuId]) -> None:
        """One job fewer holds them."""
        for slot, mask in self._masks(gpus).items():
            left = mask
            for bit in [bit for bit in bits(mask) if bit in slot.more]:
                left ^= bit
                slot.more[bit] -= 1
                if not slot.more[bit]:
                    del slot.more[bit]
            slot.taken ^= left
            self._change(slot, slot.free | left & slot.usable)

    def _change(self, slot: Slot, free: int) -> None:
        count = free.bit_count()
        self.free_count += count - slot.free_count
        slot.free, slot.free_count = free, count
        self._unfiled.add(slot)

    def _put(self, slot: Slot) -> None:
        """Into the drawer it belongs into."""
        count = slot.filed = slot.free_count
        self._drawers[count] = self._drawers.get(count, 0) | slot.bit
        self._counts |= 1 << count

    def _file(self) -> None:
        """Every node into its drawer."""
        for slot in self._unfiled:
            if slot.filed != slot.free_count:
                self._drawers[slot.filed] ^= slot.bit
                if not self._drawers[slot.filed]:
                    self._counts ^= 1 << slot.filed
                self._put(slot)
        self._unfiled.clear()

    # -- what is free ---------------------------------------------------------------------------------

    def all_free(self, gpus: Iterable[GpuId]) -> bool:
        """Whether a job may start on all of these."""
        return all(
            (slot := self._by_name.get(gpu.node)) is not None and slot.free >> gpu.ordinal & 1 for gpu in gpus
        )

    def all_usable(self, gpus: Iterable[GpuId]) -> bool:
        """Whether jobs may start on all of these once they are free."""
        return all(
            (slot := self._by_name.get(gpu.node)) is not None and slot.usable >> gpu.ordinal & 1
            for gpu in gpus
        )

    def all_idle(self, gpus: Iterable[GpuId]) -> bool:
        """Whether no job holds any of these, on whatever node: for jobs that Slurm has bound to them."""
        return all(
            (slot := self._by_name.get(gpu.node)) is not None
            and slot.sound >> gpu.ordinal & 1
            and not slot.taken >> gpu.ordinal & 1
            for gpu in gpus
        )

    def free_on(self, name: str) -> int:
        """Free GPUs of a node; 0 where there is none of this name."""
        slot = self._by_name.get(name)
        return slot.free_count if slot is not None else 0

    def with_room(self, share: int) -> Iterator[Slot]:
        """Nodes with so many free GPUs, the fullest first, the lowest number first."""
        self._file()
        counts = self._counts >> share << share
        for count in bits(counts):
            for node in bits(self._drawers[count.bit_length() - 1]):
                yield self.slots[node.bit_length() - 1]
