# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs for whole gangs, from the pool. Changes nothing.

A job that Slurm has bound goes on where it is bound; all others are placed anew each time they start.
"""

from collections.abc import Iterable
from typing import Protocol

from controller.model import NOWHERE, GpuId, GpuSet, Job, Node, Placement
from controller.policies.placement.masks import pick
from controller.policies.placement.pool import GpuPool, Slot
from controller.policies.placement.refusal import refusal

_TRIES = 8
"""First nodes that are tried for a gang over several nodes."""


class Held(Protocol):
    """Who holds which GPUs."""

    def all_idle(self, gpus: Iterable[GpuId]) -> bool:
        """Whether no job holds any of these, on whatever node."""
        ...

    def all_free(self, gpus: Iterable[GpuId]) -> bool:
        """Whether a job may start on all of these."""
        ...


def own_gpus(job: Job) -> GpuSet:
    """Those that a bound job goes on with: where it was last; if that is not known, its allocation."""
    return job.last if len(job.last) == job.gpus else job.placement.allocation


def held(pool: GpuPool, job: Job) -> Placement:
    """What a gang has as far as others are concerned: a suspended one has nothing, one that migrates the GPUs
    that it goes to."""
    if job.placement.gpus and not job.leaving:
        return job.placement
    return Placement(frozenset(), job.promised) if pool.all_usable(job.promised) else NOWHERE


def find(pool: GpuPool, job: Job, *, consolidated: bool) -> GpuSet | None:
    """GPUs for the job now. `consolidated`: of one that is not bound, on as few nodes as its size allows,
    under one switch, or not at all; else on as few as can be had."""
    return find_own(pool, job) if job.placement.allocation else _find_anew(pool, job, consolidated)


def find_own(pool: Held, job: Job) -> GpuSet | None:
    """GPUs for a bound job now."""
    own = own_gpus(job)
    if len(own) == job.gpus and pool.all_idle(own):
        return own
    if job.may_move and job.floating:
        free = [gpu for gpu in sorted(job.placement.allocation) if pool.all_free((gpu,))]
        if len(free) >= job.gpus:
            return frozenset(free[: job.gpus])
    return None


def _find_anew(pool: GpuPool, job: Job, consolidated: bool) -> GpuSet | None:
    """On the fullest nodes that have room, the lowest number first. A gang over several nodes gets the same
    GPUs on each, evenly, since Slurm's GRES are asked for per node."""
    if job.gpus > pool.free_count:
        return None
    for count in spreads(pool, job, consolidated):
        share = job.gpus // count
        found = _one_node(pool, job) if count == 1 else _nodes(pool, job, count, share, consolidated)
        if found is not None:
            return found
    return None


def find_scattered(pool: GpuPool, job: Job) -> GpuSet | None:
    """GPUs for a job that is not bound, on more nodes than its size needs; on as few as can be had."""
    for count in spreads(pool, job, consolidated=False)[1:]:
        found = _nodes(pool, job, count, job.gpus // count, consolidated=False)
        if found is not None:
            return found
    return None


def spreads(pool: GpuPool, job: Job, consolidated: bool) -> list[int]:
    """Over how many nodes the gang may be spread, the fewest first."""
    counts = pool.spreads.of(job)
    return counts[:1] if consolidated else counts


def _one_node(pool: GpuPool, job: Job) -> GpuSet | None:
    for slot in pool.with_room(job.gpus):
        if accepts(slot.node, job, job.gpus):
            return slot.gpus(pick(slot.free, job.gpus, len(slot.ids)))
    return None


def _nodes(pool: GpuPool, job: Job, count: int, share: int, consolidated: bool) -> GpuSet | None:
    groups: dict[tuple[str, str], list[Slot]] = {}
    """By GPU model, and by switch where all must be under one."""
    for slot in pool.with_room(share):
        if not accepts(slot.node, job, share):
            continue
        group = groups.setdefault((slot.node.model, slot.node.switch if consolidated else ""), [])
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
                    picked = pick(mask, share, len(members[0].ids))
                    return frozenset(gpu for member in members for gpu in member.gpus(picked))
    return None


def accepts(node: Node, job: Job, share: int) -> bool:
    """Whether the node takes `share` GPUs of the job, where it has as many free."""
    return refusal(job, node, share, share, node.memory_free_bytes) is None
