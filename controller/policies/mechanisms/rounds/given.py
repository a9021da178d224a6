# SPDX-License-Identifier: GPL-2.0-or-later
"""The jobs and GPUs of a snapshot, as an allocation is given them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from controller.model import Job, Snapshot
from controller.model.value import empty, value
from controller.policies.allocations.allocation import AllocationJob, Entity, Given, Inside, Jobs, Pair
from controller.policies.mechanisms.rounds.in_force import InForce
from controller.policies.mechanisms.rounds.kinds import type_of_kind
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.share_tree import fractions, member_of


@value(kw_only=True)
class Terms:
    """What some allocations are given besides, from their settings."""

    prices: Mapping[str, float] = field(default_factory=empty)
    """Of one GPU for an hour, by type; 1 for a type that is not named."""
    deadline_ratio: float = 0.0
    """A job without a deadline is to end within so many times its declared duration from its submission. 0:
    it has none."""

    previous: bool = False
    """It reads the allocation in force."""
    history: bool = False
    """It reads how far jobs are, or when they are to end."""
    inside: Inside = "fairness"
    """How the jobs of an account share."""
    inside_of: Mapping[str, Inside] = field(default_factory=empty)
    """The same of some accounts."""

    def seconds_left(self, job: Job, now: float) -> float | None:
        """Until the job's deadline; below 0 where that is past. None: it has none."""
        if job.deadline_at is not None:
            return job.deadline_at - now
        duration = job.request.duration_seconds
        if not self.deadline_ratio or duration is None:
            return None
        return job.submit_time + self.deadline_ratio * duration - now


NO_TERMS = Terms()


def make_given(
    snapshot: Snapshot,
    members: Sequence[Member],
    workers: Mapping[str, int],
    terms: Terms,
    pairs: tuple[Pair, ...] = (),
    in_force: InForce | None = None,
    kinds: Sequence[str] = (),
    wanted: str = "",
) -> Given:
    """`members`: those that want GPUs. `workers`: GPUs by type. `pairs`: of them, that may share GPUs.
    `in_force`: the last allocation. `kinds`: of types, that some of them distinguish. `wanted`: a digest of
    jobs and GPUs."""
    now = snapshot.time
    return Given(
        types=(*workers, *kinds),
        workers=workers,
        prices={gpu_type: terms.prices.get(gpu_type, 1.0) for gpu_type in workers},
        jobs=tuple(
            [
                known  # but for how far it is, and a requeue is a new arrival
                if not terms.history
                and (known := member.stated) is not None
                and known.arrival == member.job.submit_time
                else _job(member, terms, now)
                for member in members
            ]
        ),
        entities=_entities(snapshot, members, terms),
        pairs=pairs,
        draws_on={kind: type_of_kind(kind) for kind in kinds},
        previous=_previous(members, in_force) if terms.previous and in_force else {},
        identity=wanted and f"{wanted} {now}",
    )


def _previous(members: Iterable[Member], in_force: InForce) -> dict[Jobs, dict[str, float]]:
    """The allocation in force, where it gives anything."""
    ids = {member.id for member in members if in_force.counts(member.id)}
    return {jobs: row for jobs in in_force.rows if ids.issuperset(jobs) and (row := in_force.row(jobs))}


def _job(member: Member, terms: Terms, now: float) -> AllocationJob:
    job = member.job
    member.stated = AllocationJob(
        id=job.id,
        gpus=job.gpus,
        weight=job.request.weight,
        throughput=member.rates,
        arrival=job.submit_time,
        entity=job.account,
        **(_history(member, terms, now) if terms.history else {}),
    )
    return member.stated


def _history(member: Member, terms: Terms, now: float) -> dict[str, Any]:
    """How far the job is, by the names of AllocationJob."""
    job, throughput = member.job, member.rates
    done = math.fsum(member.seconds(t, now) * throughput[t] for t in member.had if t in throughput)
    return {
        "steps_left": _steps_left(member, throughput, done),
        "steps_done": done,
        "seconds_so_far": max(0.0, now - job.submit_time),
        "slo_seconds_left": terms.seconds_left(job, now),
    }


def _steps_left(member: Member, throughput: Mapping[str, float], done: float) -> float | None:
    """From the declared duration, which is on the fastest type that the job may use."""
    duration = member.job.request.duration_seconds
    if duration is None or not throughput:
        return None
    fastest = max(throughput.values())
    return max(duration * fastest - done, fastest)


def _entities(snapshot: Snapshot, members: Iterable[Member], terms: Terms) -> tuple[Entity, ...]:
    """The accounts of these jobs, each with what its users are due by Slurm's tree of associations; with
    equal weights where there is no tree."""
    parts: dict[str, list[float]] = {}
    if snapshot.shares:
        users = {member_of(member.job) for member in members}
        due = fractions(snapshot.shares, users)
        for user in users:
            parts.setdefault(user.account, []).append(due[user])
    else:
        parts = {member.job.account: [1.0] for member in members}
    return tuple(
        Entity(name, math.fsum(part), terms.inside_of.get(name, terms.inside))
        for name, part in sorted(parts.items())
    )


def equal_share(members: Iterable[Member], workers: Mapping[str, int]) -> dict[int, dict[str, float]]:
    """What each job has where nothing is allocated: its part of every type by its weight."""
    found: dict[int, dict[str, float]] = {}
    everyone = list(members)
    total = math.fsum(member.job.request.weight for member in everyone)
    for member in everyone:
        each = member.job.request.weight / total / member.job.gpus
        part = {t: workers.get(t, 0) * each for t in member.types}
        most = max(1.0, math.fsum(part.values()))
        found[member.id] = {t: fraction / most for t, fraction in part.items()}
    return found
