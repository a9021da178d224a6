# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs for the jobs that a round has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.model import NOWHERE, GpuId, GpuSet, Job, JobId, Placement
from controller.policies.allocations.allocation import Jobs
from controller.policies.mechanisms.rounds.choosing import Choice
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pairs import Sharing
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.placement.draft import Draft

Refused = set[tuple[Jobs, str]]


def place(draft: Draft, jobs: Sequence[Job], gpus: GpuSet) -> None:
    """They are to run there together."""
    ids = frozenset(job.id for job in jobs)
    for job in jobs:
        draft.put(job.id, Placement(gpus, job.placement.allocation or gpus, ids - {job.id}))


def keep(
    draft: Draft,
    members: Mapping[JobId, Member],
    running: Iterable[Member],
    chosen: Iterable[Choice],
) -> Refused:
    """Jobs that run on the type they are given keep their GPUs, all others of `running` leave theirs. Of two
    that were together and are so no more, the one that was chosen first keeps them.

    Returns:
        Jobs with types that have no place for them.
    """
    may_keep, taken = {member.id for member in running}, set[GpuId]()
    stay, refused = dict[JobId, Placement](), Refused()
    for choice in chosen:
        on = [members[i].job for i in choice.jobs if i in may_keep and members[i].hosted == choice.gpu_type]
        on.sort(key=lambda job: not members[job.id].bound)
        there = [job for job in on if taken.isdisjoint(job.placement.gpus)]
        there = [job for job in there if job.placement.gpus == there[0].placement.gpus]
        if any(members[job.id].bound for job in on if job not in there):
            refused.add((choice.jobs, choice.gpu_type))
            continue
        ids = frozenset(job.id for job in there)
        for job in there:
            had = job.placement
            taken |= had.gpus
            # Guests of a move come and go with their hosts.
            others = (had.shares_with - may_keep) | (ids - {job.id})
            as_before = others == had.shares_with
            stay[job.id] = had if as_before else Placement(had.gpus, had.allocation, others)
    for job_id in may_keep:
        draft.put(job_id, stay.get(job_id, NOWHERE))
    return refused


def lay_out(
    draft: Draft,
    pools: Pools,
    members: Mapping[JobId, Member],
    chosen: Sequence[Choice],
    sharing: Sharing,
) -> Refused:
    """Jobs that wait join the other one of their pair, or are placed server by server, those that Slurm has
    bound first, then the largest gangs. A gang that finds no room takes it from jobs chosen after it.

    Returns:
        Jobs with types that have no place for them; empty: all have theirs.
    """
    rank = {choice.jobs: number for number, choice in enumerate(chosen)}
    kept = [c for c in chosen if any(members[i].job.placement.gpus and draft.of(i).gpus for i in c.jobs)]
    starting = [
        (c, waiting) for c in chosen if (waiting := [j for i in c.jobs if _waits(j := members[i].job)])
    ]
    starting.sort(
        key=lambda s: (not any(j.placement.allocation for j in s[1]), -s[1][0].gpus, rank[s[0].jobs])
    )
    refused: Refused = set()
    for choice, waiting in starting:
        host = next((members[i].job for i in choice.jobs if draft.of(i).gpus), None)
        if host is not None:
            gpus = draft.of(host.id).gpus
            if sharing.may_join(waiting[0], host, gpus):
                place(draft, (host, waiting[0]), gpus)
            else:
                refused.add((choice.jobs, choice.gpu_type))
            continue

        def find(waiting: Sequence[Job] = waiting, gpu_type: str = choice.gpu_type) -> GpuSet | None:
            return find_together(pools, sharing, waiting, gpu_type)

        found = find()
        if found is None:
            behind = [c for c in kept if rank[c.jobs] > rank[choice.jobs] and c.gpu_type == choice.gpu_type]
            found = _clear(draft, find, behind, refused, kept)
        if found is None:
            refused.add((choice.jobs, choice.gpu_type))
        else:
            place(draft, waiting, found)
    return refused


def find_together(pools: Pools, sharing: Sharing, jobs: Sequence[Job], gpu_type: str) -> GpuSet | None:
    """Idle GPUs of the type for a job, or for two that may share them."""
    if len(jobs) == 1:
        return pools.find(jobs[0], gpu_type)
    for first, second in (jobs, jobs[::-1]):
        gpus = pools.find(first, gpu_type)
        if gpus is not None and sharing.may_join(second, first, gpus):
            return gpus
    return None


def _waits(job: Job) -> bool:
    return job.may_start and not job.placement.gpus


def _clear(
    draft: Draft,
    find: Callable[[], GpuSet | None],
    behind: Iterable[Choice],
    refused: Refused,
    kept: list[Choice],
) -> GpuSet | None:
    """Take GPUs from jobs chosen after this one; those that are not in its way keep theirs."""
    mark, had = draft.mark(), [(choice, {i: draft.of(i) for i in choice.jobs}) for choice in behind]
    for _, placements in had:
        for job_id in placements:
            draft.put(job_id, NOWHERE)
    gpus = find()
    if gpus is None:
        draft.rollback(mark)
        return None
    for choice, placements in had:
        if all(placement.gpus.isdisjoint(gpus) for placement in placements.values()):
            for job_id, placement in placements.items():
                draft.put(job_id, placement)
        else:
            kept.remove(choice)
            refused.add((choice.jobs, choice.gpu_type))
    return gpus
