# SPDX-License-Identifier: GPL-2.0-or-later
"""Who runs on which GPU type in a round: one list over all jobs and types, by priority (SPEC 3.5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from controller.model import JobId, value
from controller.policies.mechanisms.rounds.member import Member

LEAST_FRACTION = 1e-6
"""Less is none: solvers that approach an optimum from inside give every job a little of everything."""
_DIGITS = 3
"""Rounds are counted to a thousandth, so that jobs that had equal parts are equal."""


@value
class Choice:
    """A job on a type."""

    job_id: JobId
    gpu_type: str
    extra: bool = False
    """Beyond its fraction: the GPUs would be idle."""


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
        """Every job with every type of which it has a fraction, the first choice first; then, as `extra`,
        with those of which it has none."""
        ...


class GlobalList:
    """By priority, then by deficit and fraction, then first come, first served. Among what is beyond
    fractions those come first who had the least of that."""

    def order(
        self, members: Iterable[Member], types: Collection[str], now: float, round_seconds: float
    ) -> list[Choice]:
        first: list[tuple[Any, ...]] = []
        extra: list[tuple[Any, ...]] = []
        for member in members:
            job = member.job
            for gpu_type in member.types:
                if gpu_type not in types:
                    continue
                account = member.account(gpu_type)
                if account.fraction < LEAST_FRACTION:
                    had = round(member.extra_seconds / round_seconds, _DIGITS)
                    kept = member.hosted == gpu_type and bool(job.placement.gpus)
                    extra.append((-job.priority_class, had, not kept, job.submit_time, job.id, gpu_type))
                    continue
                received = round(member.received(gpu_type, now) / round_seconds, _DIGITS)
                deficit = round(account.deficit / round_seconds, _DIGITS)
                urgent = round(priority(account.fraction, received), 9)
                key = (-job.priority_class, -urgent, -deficit, -round(account.fraction, 6))
                first.append((*key, job.submit_time, job.id, gpu_type))
        first.sort()
        extra.sort()
        return [
            *(Choice(key[-2], key[-1]) for key in first),
            *(Choice(key[-2], key[-1], True) for key in extra),
        ]


def choose(
    order: Iterable[Choice],
    gpus: Mapping[JobId, int],
    free: Mapping[str, int],
    refused: Collection[tuple[JobId, str]] = (),
) -> dict[JobId, Choice]:
    """Go through the list; a gang that does not fit is passed over.

    Args:
        gpus: sizes of the gangs.
        free: GPUs to be given, by type.
        refused: jobs with types that have no place for them.
    """
    left, chosen = dict(free), dict[JobId, Choice]()
    for choice in order:
        size, gpu_type = gpus[choice.job_id], choice.gpu_type
        if choice.job_id in chosen or size > left.get(gpu_type, 0):
            continue
        if (choice.job_id, gpu_type) in refused:
            continue
        chosen[choice.job_id] = choice
        left[gpu_type] -= size
    return chosen
