# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs by node, and who has the others, kept so that a place is found without a look at every node.

One integer per node, a mask, has a bit for each free GPU (bit i: the GPU with ordinal i), and nodes are filed
by how many they have.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from controller.model import GpuId, GpuSet, Job, JobId, Node, Why, natural_key
from controller.policies.placement.groups import Spreads, same_offer

NOBODY = JobId(-1)
"""Has what no job may have."""


def bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest


def sound_mask(node: Node) -> int:
    """GPUs that jobs may use which Slurm has bound to them: also on a node where it would start nothing (one
    that is being drained), but not where the agent does not answer, which shows no GPU as healthy."""
    mask = 0
    for gpu in node.gpus:
        if gpu.usable:
            mask |= 1 << gpu.id.ordinal
    return mask


class Slot:
    """One node."""

    __slots__ = ("bit", "filed", "free", "ids", "model", "node", "size", "sound", "usable")

    def __init__(self, number: int, node: Node, taken: Container[GpuId]) -> None:
        self.bit = 1 << number
        """Its own among the nodes of a drawer."""
        self.node, self.model = node, node.model
        self.ids = {gpu.id.ordinal: gpu.id for gpu in node.gpus}
        self.size = max(self.ids, default=-1) + 1
        """So many GPUs, with those that are missing before its last one."""
        self.sound = sound_mask(node)
        self.usable = self.sound if node.available else 0
        """GPUs that jobs may start on."""
        self.free = self.usable & ~sum(1 << ordinal for ordinal, gpu in self.ids.items() if gpu in taken)
        self.filed = self.free.bit_count()

    def gpus(self, mask: int) -> list[GpuId]:
        """In order."""
        return [self.ids[bit.bit_length() - 1] for bit in bits(mask)]


class Free:
    """A GPU that several jobs have (one is leaving it, another waits for it) is free when none has it any
    more. Each node has GPUs of one model."""

    def __init__(self, nodes: Mapping[str, Node], held: Mapping[JobId, GpuSet] | None = None) -> None:
        """`held`: what jobs have."""
        self._held = dict(held or {})
        self._holders: dict[GpuId, list[JobId]] = {}
        for job_id, gpus in self._held.items():
            for gpu in gpus:
                self._holders.setdefault(gpu, []).append(job_id)
        names = sorted(nodes, key=natural_key)
        self.slots = [Slot(i, nodes[name], self._holders) for i, name in enumerate(names)]
        self._by_name = {slot.node.name: slot for slot in self.slots}
        self.spreads = Spreads((node.model, len(node.gpus)) for node in nodes.values())
        self._drawers: dict[int, int] = {}
        """Nodes by how many GPUs are free there, a bit for each."""
        self._of_model: dict[str, int] = {}
        """Nodes by the model of their GPUs, a bit for each."""
        self._unfiled: set[Slot] = set()
        """Nodes to be filed anew at the next look: most changes are taken back or followed by others."""
        self.count = Counter[str]()
        """Free GPUs by model."""
        for slot in self.slots:
            self._drawers[slot.filed] = self._drawers.get(slot.filed, 0) | slot.bit
            self._of_model[slot.model] = self._of_model.get(slot.model, 0) | slot.bit
            self.count[slot.model] += slot.filed
        self.closed = frozenset(slot.node.name for slot in self.slots if slot.sound and not slot.usable)
        """Nodes where nothing starts, but what is there may go on."""
        self.refused: set[object] = set()
        """What was sought in vain as things stand, in the words of those who seek."""

    def same_gpus(self, name: str, node: Node | None) -> bool:
        """Whether this node offers what it offered when this was made. If so, it is taken over."""
        slot = self._by_name.get(name)
        if slot is None or node is None:
            return slot is None and node is None
        if not same_offer(slot.node, node, "switch"):
            return False
        slot.node = node
        self.refused.clear()
        return True

    def node(self, name: str) -> Node | None:
        slot = self._by_name.get(name)
        return slot.node if slot is not None else None

    # -- who has which --------------------------------------------------------------------------------

    def hold(self, job_id: JobId, gpus: GpuSet) -> None:
        """The job has these now, and no others."""
        had = self._held.get(job_id, frozenset())
        if had == gpus:
            return
        if gpus:
            self._held[job_id] = gpus
        else:
            del self._held[job_id]
        if had:
            self.refused.clear()
        for gpu in had - gpus:
            holders = self._holders[gpu]
            holders.remove(job_id)
            if not holders:
                del self._holders[gpu]
                self._turn(gpu, 1)
        for gpu in gpus - had:
            holders = self._holders.setdefault(gpu, [])
            if not holders:
                self._turn(gpu, -1)
            holders.append(job_id)

    def _turn(self, gpu: GpuId, change: int) -> None:
        """It was taken and is free now, or the other way."""
        slot, bit = self._by_name.get(gpu.node), 1 << gpu.ordinal
        if slot is not None and slot.usable & bit:
            slot.free ^= bit
            self.count[slot.model] += change
            self._unfiled.add(slot)

    def held(self, job_id: JobId) -> GpuSet:
        return self._held.get(job_id, frozenset())

    def holders(self, gpu: GpuId) -> Sequence[JobId]:
        """Jobs that have this GPU."""
        return self._holders.get(gpu, ())

    def jobs_on(self, name: str) -> set[JobId]:
        """Those that have GPUs of a node."""
        gpus = self._by_name[name].ids.values() if name in self._by_name else ()
        return {job_id for gpu in gpus for job_id in self.holders(gpu)} - {NOBODY}

    def _file(self) -> None:
        """Every node into its drawer."""
        for slot in self._unfiled:
            count = slot.free.bit_count()
            if slot.filed != count:
                self._drawers[slot.filed] ^= slot.bit
                if not self._drawers[slot.filed]:
                    del self._drawers[slot.filed]
                self._drawers[count] = self._drawers.get(count, 0) | slot.bit
                slot.filed = count
        self._unfiled.clear()

    # -- what is free ---------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether any is free."""
        return self.count.total() > 0

    def all_free(self, gpus: Iterable[GpuId]) -> bool:
        """Whether a job may start on all of these."""
        return self._in_all(gpus, attrgetter("free"))

    def all_usable(self, gpus: Iterable[GpuId]) -> bool:
        """Whether jobs may start on all of these once they are free."""
        return self._in_all(gpus, attrgetter("usable"))

    def all_idle(self, gpus: Collection[GpuId]) -> bool:
        """Whether no job has any of these, on whatever node: for jobs that Slurm has bound to them."""
        return self._holders.keys().isdisjoint(gpus) and self._in_all(gpus, attrgetter("sound"))

    def _in_all(self, gpus: Iterable[GpuId], mask: Callable[[Slot], int]) -> bool:
        slots = self._by_name
        return all(gpu.node in slots and mask(slots[gpu.node]) >> gpu.ordinal & 1 for gpu in gpus)

    def on(self, name: str) -> list[GpuId]:
        """Free GPUs of a node, in order; none where there is no node of this name."""
        slot = self._by_name.get(name)
        return slot.gpus(slot.free) if slot is not None else []

    def count_on(self, name: str) -> int:
        """How many these are."""
        slot = self._by_name.get(name)
        return slot.free.bit_count() if slot is not None else 0

    def why_nowhere(self, job: Job) -> Why | None:
        """One sentence for a job that no node can take, whatever runs there now; None where one can."""
        return self.spreads.why_nowhere(job, ((s.node, s.sound.bit_count(), None) for s in self.slots))

    def of_model(self, model: str) -> list[Slot]:
        """Nodes with such GPUs."""
        return [self.slots[bit.bit_length() - 1] for bit in bits(self._of_model.get(model, 0))]

    def with_room(self, share: int, model: str = "") -> Iterator[Slot]:
        """Nodes with so many free GPUs (of this model), the fullest first, the lowest number first."""
        self._file()
        among = self._of_model.get(model, 0) if model else -1
        for count in sorted(self._drawers):
            if count >= share:
                for bit in bits(self._drawers[count] & among):
                    yield self.slots[bit.bit_length() - 1]

    def fitting(self, least: int, most: int | None = None, *, emptiest: bool = False) -> Iterator[str]:
        """Nodes with at least so many free GPUs, and no more than `most`: the fewest first, or the most, then
        by name."""
        self._file()
        for count in sorted(self._drawers, reverse=emptiest):
            if least <= count and (most is None or count <= most):
                yield from sorted(
                    self.slots[bit.bit_length() - 1].node.name for bit in bits(self._drawers[count])
                )
