# SPDX-License-Identifier: GPL-2.0-or-later
"""The jobs and GPUs of a snapshot, as an allocation is given them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from controller.model import Snapshot, rate_key
from controller.policies.allocations.allocation import AllocationJob, Entity, Given
from controller.policies.mechanisms.rounds.member import Member


def make_given(
    snapshot: Snapshot, members: Sequence[Member], workers: Mapping[str, int], prices: Mapping[str, float]
) -> Given:
    """`members`: those that want GPUs. `workers`: GPUs by type."""
    now = snapshot.time
    return Given(
        types=tuple(workers),
        workers=workers,
        prices=prices,
        jobs=tuple(_job(snapshot, member, now) for member in members),
        entities=_entities(snapshot, members),
        previous={
            (member.id,): {t: account.fraction for t, account in member.accounts.items()}
            for member in members
            if member.allocated
        },
    )


def _job(snapshot: Snapshot, member: Member, now: float) -> AllocationJob:
    job, throughput = member.job, rates_of(snapshot, member)
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


def rates_of(snapshot: Snapshot, member: Member) -> dict[str, float]:
    """Samples per second of the job alone, by the types that it may run on. A type that nothing is known of
    counts as fast as the fastest: that is found out soon. Where nothing is known of any, all are alike."""
    job = member.job
    table = snapshot.rates.get(rate_key(job), {})
    found: dict[str, tuple[int, float]] = {}
    for where, rate in table.items():
        if where.gpus == job.gpus and not where.models_beside:
            known = found.get(where.gpu_type)
            if known is None or where.nodes < known[0]:
                found[where.gpu_type] = (where.nodes, rate.samples_per_second)
    fastest = max((speed for _, speed in found.values()), default=1.0)
    return {t: found[t][1] if t in found else fastest for t in member.types}


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
