# SPDX-License-Identifier: GPL-2.0-or-later
"""The jobs and GPUs of a snapshot, as an allocation is given them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from controller.model import Snapshot
from controller.policies.allocations.allocation import AllocationJob, Entity, Given
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.speeds import Speeds


def make_given(
    snapshot: Snapshot,
    members: Sequence[Member],
    speeds: Speeds,
    workers: Mapping[str, int],
    prices: Mapping[str, float],
) -> Given:
    """`members`: those that want GPUs. `workers`: GPUs by type."""
    now = snapshot.time
    return Given(
        types=tuple(workers),
        workers=workers,
        prices=prices,
        jobs=tuple(_job(member, speeds.alone(member), now) for member in members),
        entities=_entities(snapshot, members),
        previous={
            (member.id,): {t: account.fraction for t, account in member.accounts.items()}
            for member in members
            if member.allocated
        },
    )


def _job(member: Member, throughput: Mapping[str, float], now: float) -> AllocationJob:
    job = member.job
    return AllocationJob(
        id=job.id,
        gpus=job.gpus,
        weight=job.request.weight,
        throughput=throughput,
        steps_left=_steps_left(member, throughput, now),
        seconds_so_far=max(0.0, now - job.submit_time),
        arrival=job.submit_time,
        entity=job.account,
    )


def _steps_left(member: Member, throughput: Mapping[str, float], now: float) -> float | None:
    """From the declared duration, which is on the fastest type that the job may use."""
    duration = member.job.request.duration_seconds
    if duration is None or not throughput:
        return None
    fastest = max(throughput.values())
    done = math.fsum(member.seconds(t, now) * rate for t, rate in throughput.items())
    return max(duration * fastest - done, fastest)


def _entities(snapshot: Snapshot, members: Iterable[Member]) -> tuple[Entity, ...]:
    """The accounts of these jobs, with their weights where Slurm says them."""
    names = sorted({member.job.account for member in members})
    return tuple(
        Entity(name, snapshot.shares[name].weight if name in snapshot.shares else 1.0) for name in names
    )


def equal_share(members: Iterable[Member], workers: Mapping[str, int]) -> dict[int, dict[str, float]]:
    """What each job has where nothing is allocated: its part of every type as if all were alike."""
    found: dict[int, dict[str, float]] = {}
    everyone = list(members)
    for member in everyone:
        part = {t: workers.get(t, 0) / len(everyone) / member.job.gpus for t in member.types}
        most = max(1.0, math.fsum(part.values()))
        found[member.id] = {t: fraction / most for t, fraction in part.items()}
    return found
