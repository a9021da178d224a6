# SPDX-License-Identifier: GPL-2.0-or-later
"""Who runs on which GPU type in a round: one list over all jobs and types, by priority (SPEC 3.5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from controller.model import JobId, value
from controller.policies.allocations.allocation import Jobs
from controller.policies.mechanisms.rounds.member import ALONE, LEAST_FRACTION, Account, Member

_DIGITS = 3
"""Rounds are counted to a thousandth, so that jobs that had equal parts are equal."""


@value
class Choice:
    """One job, or the two of a pair, on a type."""

    jobs: Jobs
    gpu_type: str
    extra: bool = False
    """Beyond its fraction: the GPUs would be idle."""

    def partner(self, job_id: JobId) -> JobId:
        """Of one of its jobs."""
        return next((other for other in self.jobs if other != job_id), ALONE)


def priority(fraction: float, received_rounds: float) -> float:
    """What a job is to have of a type by what it had of it. Infinite where it had nothing yet."""
    if fraction < LEAST_FRACTION:
        return 0.0
    return fraction / received_rounds if received_rounds > 0 else math.inf


class Ordering(Protocol):
    """In which order jobs are given types."""

    def order(
        self, members: Iterable[Member], types: Collection[str], now: float, round_seconds: float
    ) -> list[Choice]:
        """Every job and every pair with every type of which it has a fraction, the first choice first; then,
        as `extra`, every job with those of which it has none."""
        ...


class GlobalList:
    """By priority, then by deficit and fraction, then first come, first served. Among what is beyond
    fractions those come first who had the least of that."""

    def order(
        self, members: Iterable[Member], types: Collection[str], now: float, round_seconds: float
    ) -> list[Choice]:
        present = {member.id: member for member in members}
        first: list[tuple[Any, ...]] = []
        extra: list[tuple[Any, ...]] = []
        for member in present.values():
            job = member.job
            for gpu_type in member.types:
                if gpu_type not in types:
                    continue
                account = member.account(gpu_type)
                if account.fraction < LEAST_FRACTION:
                    had = round(member.extra_seconds / round_seconds, _DIGITS)
                    kept = member.hosted == gpu_type and bool(job.placement.gpus)
                    extra.append((-job.priority_class, had, not kept, job.submit_time, (job.id,), gpu_type))
                    continue
                received = member.received((gpu_type, ALONE), now)
                urgency = _urgency(account, received, round_seconds)
                first.append((-job.priority_class, *urgency, job.submit_time, (job.id,), gpu_type))
            for (gpu_type, beside), account in member.accounts.items():
                # A pair is listed with the first of the two.
                other = present.get(beside) if beside > job.id else None
                if other is None or account.fraction < LEAST_FRACTION or gpu_type not in types:
                    continue
                if gpu_type in member.types and gpu_type in other.types:
                    urgency = _urgency(account, member.received((gpu_type, beside), now), round_seconds)
                    since = min(job.submit_time, other.job.submit_time)
                    first.append((-job.priority_class, *urgency, since, (job.id, beside), gpu_type))
        first.sort()
        extra.sort()
        return [
            *(Choice(key[-2], key[-1]) for key in first),
            *(Choice(key[-2], key[-1], True) for key in extra),
        ]


def _urgency(account: Account, received_seconds: float, round_seconds: float) -> tuple[float, ...]:
    """The smaller the earlier."""
    received = round(received_seconds / round_seconds, _DIGITS)
    deficit = round(account.deficit / round_seconds, _DIGITS)
    return -round(priority(account.fraction, received), 9), -deficit, -round(account.fraction, 6)


def choose(
    order: Iterable[Choice],
    gpus: Mapping[JobId, int],
    free: Mapping[str, int],
    refused: Collection[tuple[Jobs, str]] = (),
) -> list[Choice]:
    """Go through the list; a gang that does not fit is passed over, and so is a job that has its part of this
    round alone or in a pair.

    Args:
        gpus: sizes of the gangs.
        free: GPUs to be given, by type.
        refused: jobs with types that have no place for them.
    """
    left, taken, chosen = dict(free), set[JobId](), list[Choice]()
    for choice in order:
        size, gpu_type = gpus[choice.jobs[0]], choice.gpu_type
        if size > left.get(gpu_type, 0) or not taken.isdisjoint(choice.jobs):
            continue
        if (choice.jobs, gpu_type) in refused:
            continue
        chosen.append(choice)
        taken.update(choice.jobs)
        left[gpu_type] -= size
    return chosen
