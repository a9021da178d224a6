# SPDX-License-Identifier: GPL-2.0-or-later
"""Pairs: two jobs that may have the same GPUs of a type at the same time (SPEC 3.3, space sharing)."""

import marshal
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from controller.model import GpuId, GpuSet, Job, Snapshot, rate_key
from controller.policies.allocations.allocation import Jobs, Pair
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.speeds import Speeds, Together
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import own_gpus
from controller.policies.placement.sharing import can_join, peak_bytes, refusal_to_share, room_bytes

PARTNERS = 8
"""A job looks for so many partners: the number of pairs grows with that of the jobs, not with its square."""
_LOOKS = 64
"""So many others are looked at for them."""
IN_TURNS = 1.0
"""The sum of their rates relative to those alone, of two jobs that take turns."""


class SharingRules:
    """Who may join whom, by one snapshot."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._snapshot, self._draft = snapshot, draft

    def may_join(self, job: Job, host: Job, gpus: GpuSet) -> bool:
        """Whether the job, which is off GPUs, may start on these beside the host, which is there or starts
        there too."""
        if refusal_to_share(self._snapshot, host, job, gpus):
            return False
        promised = 0 if host.placement.allocation else 1
        return can_join(self._snapshot, job, gpus, self._draft.bound(self._snapshot), promised)


def find_pairs(snapshot: Snapshot, members: Sequence[Member], speeds: Speeds) -> tuple[Pair, ...]:
    """Pairs that may share GPUs and do more together than in turns on some type. Each job has up to
    `PARTNERS` of its own choice, those with the largest gain first, and may be chosen by others.

    Args:
        members: jobs that an allocation counts.
    """
    groups: dict[tuple[str, int, int], list[Member]] = {}
    for member in members:
        if member.job.request.may_pack and peak_bytes(snapshot, member.job) > 0:
            job = member.job
            groups.setdefault((rate_key(job), job.gpus, job.priority_class), []).append(member)
    rooms = _rooms(snapshot) if groups else {}
    found: dict[Jobs, Pair] = {}
    for (model, gpus, level), group in groups.items():
        together = speeds.together(gpus).get(model, {})
        partners = [
            (others, both) for name, both in together.items() if (others := groups.get((name, gpus, level)))
        ]
        alone = speeds.alone(group[0])
        most = [max(_gains(alone, speeds.alone(o[0]), both).values(), default=0.0) for o, both in partners]
        order = sorted(range(len(partners)), key=lambda number: -most[number])
        partners = [partners[number] for number in order]
        for number, member in enumerate(group):
            own = 0
            for other, both in islice(_others(member, number, partners), _LOOKS):
                pair = _pair(snapshot, member, other, speeds, both, rooms)
                if pair is None or not _can_meet(member, other):
                    continue
                found.setdefault(pair.jobs, pair)
                own += 1
                if own == PARTNERS:
                    break
    return tuple(found[jobs] for jobs in sorted(found))


def _others(
    member: Member, number: int, partners: Sequence[tuple[Sequence[Member], Together]]
) -> Iterator[tuple[Member, Together]]:
    """Jobs of the other model, each job of a model beginning with another one of them."""
    for others, both in partners:
        for step in range(len(others)):
            other = others[(number + step) % len(others)]
            if other is not member:
                yield other, both


def _gains(one: Mapping[str, float], other: Mapping[str, float], both: Together) -> dict[str, float]:
    """By type: what the two do together by what they do in turns."""
    return {
        gpu_type: mine / one[gpu_type] + theirs / other[gpu_type]
        for gpu_type, (mine, theirs) in both.items()
        if one.get(gpu_type, 0.0) > 0 and other.get(gpu_type, 0.0) > 0
    }


def _pair(
    snapshot: Snapshot,
    member: Member,
    other: Member,
    speeds: Speeds,
    both: Together,
    rooms: Mapping[str, int],
) -> Pair | None:
    """None: they gain nothing, or nowhere is room for both."""
    needed = peak_bytes(snapshot, member.job) + peak_bytes(snapshot, other.job)
    gains = _gains(speeds.alone(member), speeds.alone(other), both)
    rates = {t: both[t] for t, gain in gains.items() if gain > IN_TURNS and needed <= rooms.get(t, 0)}
    if not rates:
        return None
    if member.id < other.id:
        return Pair((member.id, other.id), rates)
    return Pair((other.id, member.id), {t: (theirs, mine) for t, (mine, theirs) in rates.items()})


def _rooms(snapshot: Snapshot) -> dict[str, int]:
    """By type: bytes that the peaks of two jobs may take on each GPU of it."""
    by_type: dict[str, set[GpuId]] = {}
    for node in snapshot.nodes.values():
        for gpu in node.gpus:
            by_type.setdefault(gpu.model, set()).add(gpu.id)
    return {gpu_type: room_bytes(snapshot, frozenset(gpus)) for gpu_type, gpus in by_type.items()}


def _can_meet(one: Member, other: Member) -> bool:
    """Whether two jobs can be on the same GPUs."""
    if not one.bound or not other.bound:
        return True
    own, others = own_gpus(one.job), own_gpus(other.job)
    return (
        own == others
        or (one.job.may_move and others <= one.job.placement.allocation)
        or (other.job.may_move and own <= other.job.placement.allocation)
    )


def digest(found: Any) -> int:
    """The same in every run. `found`: JSON, or tuples instead of its lists."""
    return int.from_bytes(blake2b(marshal.dumps(found, 2), digest_size=8).digest(), "big")
