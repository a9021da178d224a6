# SPDX-License-Identifier: GPL-2.0-or-later
"""Which two jobs may be on the same GPUs at the same time (SPEC 1.4).

Both ask for it (`--gandiva-pack=yes`), their gangs are equally large, neither outranks the other, and the
peaks of their memory, both measured while they ran, fit together on each GPU.
"""

from collections.abc import Mapping

from controller.model import GpuId, GpuSet, Job, Snapshot, by_node
from controller.policies.placement.gangs import accepts

_RESERVE_FRACTION = 0.1
"""Of a GPU's memory that stays free beside the two peaks: fragments, and what was not measured."""


def peak_bytes(snapshot: Snapshot, job: Job) -> int:
    """The most that the job itself was seen to have on one GPU. 0: not measured yet."""
    profile = snapshot.profiles.get(job.id)
    return 0 if profile is None else profile.peak_memory_bytes


def utilization(snapshot: Snapshot, job: Job) -> float:
    """How busy it keeps its GPUs, from 0 to 1. Not measured: 1."""
    fraction = snapshot.profile_of(job.id).utilization_fraction
    return 1.0 if fraction is None else fraction


def room_bytes(snapshot: Snapshot, gpus: GpuSet) -> int:
    """How much of these GPUs' memory, on the smallest of them, peaks may take. 0: one is gone."""
    cards = [snapshot.gpu(gpu) for gpu in gpus]
    smallest = min((0 if card is None else card.memory_bytes for card in cards), default=0)
    return int(smallest * (1 - _RESERVE_FRACTION))


def refusal_to_share(snapshot: Snapshot, one: Job, other: Job, gpus: GpuSet) -> str:
    """Why these two may not be on these GPUs together; empty where they may."""
    for job in (one, other):
        if not job.request.may_pack:
            return f"job {job.id} does not ask to share its GPUs (pack)"
    if one.gpus != other.gpus:
        return "their gangs are of different sizes"
    if one.priority_class != other.priority_class:
        return "their priority classes differ"
    peaks = [peak_bytes(snapshot, job) for job in (one, other)]
    if min(peaks) <= 0:
        return "the memory of one was not measured yet"
    room = room_bytes(snapshot, gpus)
    if sum(peaks) <= room:
        return ""
    first, second = (f"{peak / 2**30:.1f}" for peak in peaks)
    return f"their memory, {first} and {second} GiB, does not fit into {room / 2**30:.1f} GiB"


def can_join(
    snapshot: Snapshot, guest: Job, gpus: GpuSet, bound: Mapping[GpuId, int], promised: int = 0
) -> bool:
    """Whether a job that is off GPUs may use these beside the one that has them.

    Args:
        bound: how many jobs Slurm has bound to each.
        promised: how many more it is about to bind there.
    """
    cards = [snapshot.gpu(gpu) for gpu in gpus]
    if not all(card is not None and card.usable for card in cards):
        return False
    if guest.placement.allocation:
        return gpus == guest.last or (guest.may_move and gpus <= guest.placement.allocation)
    nodes = by_node(gpus)
    if guest.request.nodes not in (None, len(nodes)):
        return False
    if not all(accepts(snapshot.nodes[name], guest, len(ordinals)) for name, ordinals in nodes.items()):
        return False
    return all(card is not None and bound[card.id] + promised < card.shards for card in cards)
