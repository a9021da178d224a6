# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs for the jobs that a round has chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.model import NOWHERE, GpuSet, JobId, Placement
from controller.policies.mechanisms.rounds.choosing import Choice
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.placement.draft import Draft

Refused = set[tuple[JobId, str]]


def place(draft: Draft, member: Member, gpus: GpuSet) -> None:
    """It is to run there."""
    draft.put(member.id, Placement(gpus, member.job.placement.allocation or gpus))


def lay_out(
    draft: Draft, pools: Pools, members: Mapping[JobId, Member], chosen: Mapping[JobId, Choice]
) -> Refused:
    """Jobs that run on the type they are given keep their GPUs. The others that wait are placed server by
    server, those that Slurm has bound first, then the largest gangs. A gang that finds no room takes it from
    jobs chosen after it.

    Returns:
        Jobs with types that have no place for them; empty: all have theirs.
    """
    rank = {job_id: number for number, job_id in enumerate(chosen)}
    kept = [i for i in chosen if members[i].job.placement.gpus and draft.of(i).gpus]
    starting = [members[i] for i in chosen if not members[i].job.placement.gpus and members[i].job.may_start]
    starting.sort(key=lambda m: (not m.job.placement.allocation, -m.job.gpus, rank[m.id]))
    refused: Refused = set()
    for member in starting:
        gpu_type = chosen[member.id].gpu_type
        gpus = pools.find(member.job, gpu_type)
        if gpus is None:
            behind = [i for i in kept if rank[i] > rank[member.id] and chosen[i].gpu_type == gpu_type]
            gpus = _clear(draft, pools, member, gpu_type, behind, refused, kept)
        if gpus is None:
            refused.add((member.id, gpu_type))
        else:
            place(draft, member, gpus)
    return refused


def _clear(
    draft: Draft,
    pools: Pools,
    member: Member,
    gpu_type: str,
    behind: Iterable[JobId],
    refused: Refused,
    kept: list[JobId],
) -> GpuSet | None:
    """Take GPUs from jobs chosen after this one; those that are not in its way keep theirs."""
    mark, had = draft.mark(), {job_id: draft.of(job_id) for job_id in behind}
    for job_id in had:
        draft.put(job_id, NOWHERE)
    gpus = pools.find(member.job, gpu_type)
    if gpus is None:
        draft.rollback(mark)
        return None
    for job_id, placement in had.items():
        if placement.gpus.isdisjoint(gpus):
            draft.put(job_id, placement)
        else:
            kept.remove(job_id)
            refused.add((job_id, gpu_type))
    return gpus
