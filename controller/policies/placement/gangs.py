# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs for whole gangs, of those that are free. Changes nothing.

A job that Slurm has bound goes on where it is bound; all others are placed anew each time they start.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from controller.model import NOWHERE, GpuSet, Job, Node, Placement, gpu_type
from controller.policies.budget import SEEN
from controller.policies.placement.free import Free, Slot
from controller.policies.placement.refusal import refusal

_TRIES = 8
"""First nodes that are tried for a gang over several nodes."""
_ALIGNED_UP_TO = 16
"""Larger "nodes" are pools of GPUs without a topology (counting placement in simulation)."""


def own_gpus(job: Job) -> GpuSet:
    """Those that a bound job goes on with: where it was last; if that is not known, its allocation."""
    return job.last if len(job.last) == job.gpus else job.placement.allocation


def held(free: Free, job: Job) -> Placement:
    """What a gang has as far as others are concerned: a suspended one has nothing, one that migrates the GPUs
    that it goes to."""
    if job.placement.gpus and not job.leaving:
        return job.placement
    promised = job.promised and free.all_usable(job.promised)
    return Placement(frozenset(), job.promised) if promised else NOWHERE


def find(
    free: Free, job: Job, model: str = "", *, consolidated: bool = False, scattered: bool = False
) -> GpuSet | None:
    """GPUs for the job now; where Slurm has bound it, those that it is bound to. Else on the fullest nodes
    that have room, the lowest number first. A gang over several nodes gets the same GPUs on each, evenly,
    since Slurm's GRES are asked for per node.

    Args:
        model: of the GPUs. Empty: of any.
        consolidated: on as few nodes as its size allows, under one switch, or not at all; else on as few as
            can be had.
        scattered: on more nodes than its size needs.
    """
    if job.placement.allocation:
        return _own(free, job)
    if job.gpus > (free.count[model] if model else free.count.total()):
        return None
    for count in spreads(free, job, consolidated, model)[scattered:]:
        share = job.gpus // count
        one = count == 1
        found = _one_node(free, job, model) if one else _nodes(free, job, model, count, share, consolidated)
        if found is not None:
            return found
    return None


def _own(free: Free, job: Job) -> GpuSet | None:
    own = own_gpus(job)
    if len(own) == job.gpus and free.all_idle(own):
        return own
    if job.may_move and job.floating:
        there = [gpu for gpu in sorted(job.placement.allocation) if free.all_free((gpu,))]
        if len(there) >= job.gpus:
            return frozenset(there[: job.gpus])
    return None


def spreads(free: Free, job: Job, consolidated: bool, model: str = "") -> list[int]:
    """Over how many nodes the gang may be spread, the fewest first. `model`: of their GPUs; empty: of any."""
    counts = free.spreads.of(job, model)
    return counts[:1] if consolidated else counts


def tightest(free: Free, job: Job, nodes: Mapping[str, Node]) -> str | None:
    """The node with the fewest free GPUs that takes the job, with the type of those it is or was on."""
    model = gpu_type(job.placement.gpus or job.last, nodes)
    return first_to_take(job, nodes, free.fitting(job.gpus), model)


def first_to_take(job: Job, nodes: Mapping[str, Node], names: Iterable[str], model: str) -> str | None:
    """The first of these nodes with GPUs of this model that takes the job."""
    alike = (name for name in islice(names, SEEN) if nodes[name].model == model)
    return next((name for name in alike if accepts(nodes[name], job, job.gpus)), None)


def _one_node(free: Free, job: Job, model: str) -> GpuSet | None:
    for slot in free.with_room(job.gpus, model):
        if accepts(slot.node, job, job.gpus):
            return frozenset(slot.gpus(pick(slot.free, job.gpus, slot.size)))
    return None


def _nodes(free: Free, job: Job, model: str, count: int, share: int, consolidated: bool) -> GpuSet | None:
    groups: dict[tuple[str, str], list[Slot]] = {}
    """By GPU model, and by switch where all must be under one."""
    for slot in free.with_room(share, model):
        if not accepts(slot.node, job, share):
            continue
        group = groups.setdefault((slot.model, slot.node.switch if consolidated else ""), [])
        group.append(slot)
        # Mostly the first ones do, and the others need not be looked at.
        if len(group) == count and not consolidated and (first := _common(group, count, share)) is not None:
            return first
    found = (_common(group, count, share) for group in groups.values())
    return next((gpus for gpus in found if gpus is not None), None)


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
                    picked = pick(mask, share, members[0].size)
                    return frozenset(gpu for member in members for gpu in member.gpus(picked))
    return None


def pick(free: int, count: int, size: int) -> int:
    """`count` of the free GPUs of a node with so many: an aligned block, which shares switches and bridges,
    where there is one; else the lowest."""
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


def accepts(node: Node, job: Job, share: int) -> bool:
    """Whether the node takes `share` GPUs of the job, where it has as many free."""
    return refusal(job, node, share, share, node.memory_free_bytes) is None
