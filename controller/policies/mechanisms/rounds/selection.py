# SPDX-License-Identifier: GPL-2.0-or-later
"""Who runs on which GPU type in a round: one list over all jobs and types, by priority (SPEC 3.5)."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any, NamedTuple, TypeAlias

from controller.model import Job, JobId
from controller.policies.allocations.allocation import Jobs
from controller.policies.mechanisms.rounds.in_force import ALONE, InForce
from controller.policies.mechanisms.rounds.kinds import type_of_kind
from controller.policies.mechanisms.rounds.member import Member

_DIGITS = 3
"""Rounds are counted to a thousandth, so that jobs that had equal parts are equal."""


class Choice(NamedTuple):
    """One job, or the two of a pair, on a type."""

    jobs: Jobs
    gpu_type: str
    """Its kind, where an allocation has two of it."""
    extra: bool = False
    """Beyond its fraction: the GPUs would be idle."""

    def partner(self, job_id: JobId) -> JobId:
        """Of one of its jobs."""
        return next((other for other in self.jobs if other != job_id), ALONE)


def priority(fraction: float, received_rounds: float) -> float:
    """What a job is to have of a type by what it had of it. Infinite where it had nothing yet."""
    if not fraction:
        return 0.0
    return fraction / received_rounds if received_rounds > 0 else math.inf


Head: TypeAlias = tuple[int, bool, float]
"""The smaller the earlier: jobs of a higher class, then of users with a larger fair-share factor."""


def ranked(
    members: Iterable[Member], in_force: InForce, types: Collection[str], now: float, round_seconds: float
) -> Iterable[Choice]:
    """Every job and every pair with every kind of GPUs of which it has a fraction; then, as `extra`, every
    job with those of which it has none. By priority, then by deficit and fraction, then first come, first
    served. Among what is beyond fractions those come first who had the least of that. Where users come in an
    order, all this is so among the jobs of users of the same rank.

    Args:
        types: these kinds alone.
    """
    present = {member.id: member for member in members}
    found: dict[Head, list[tuple[Any, ...]]] = {}
    by_head: dict[Head, list[Member]] = {}
    for member in present.values():
        job = member.job
        own, submitted = _head(job), job.submit_time
        by_head.setdefault(own, []).append(member)
        for slot, fraction in in_force.of(job.id).items():
            gpu_type, beside = slot
            if gpu_type not in types or gpu_type not in member.types:
                continue
            jobs: Jobs = (job.id,)
            head, since = own, submitted
            if beside != ALONE:
                # A pair is listed with the first of the two.
                other = present.get(beside) if beside > job.id else None
                if other is None or gpu_type not in other.types:
                    continue
                jobs, since = (job.id, beside), min(submitted, other.job.submit_time)
                head = min(own, _head(other.job))
            account = member.accounts.get(slot)
            deficit = account.deficit if account is not None else 0.0
            urgency = _urgency(fraction, member.received(slot, now), deficit, round_seconds)
            found.setdefault(head, []).append((*urgency, since, jobs, gpu_type))
    for keys in found.values():
        keys.sort()
    return chain.from_iterable(
        chain(
            (Choice(key[-2], key[-1]) for key in found.get(head, ())),
            _extra(by_head[head], in_force, types, round_seconds),
        )
        for head in sorted(by_head)
    )


def _head(job: Job) -> Head:
    return -job.priority_class, job.behind, job.share_rank


def _extra(
    members: Iterable[Member], in_force: InForce, types: Collection[str], round_seconds: float
) -> Iterator[Choice]:
    """What is beyond fractions. It is made when the list comes to it: mostly no GPU is left then."""
    found: list[tuple[Any, ...]] = []
    for member in members:
        job, had = member.job, round(member.extra_seconds / round_seconds, _DIGITS)
        own = in_force.of(job.id)
        for gpu_type in member.types:
            if gpu_type in types and (gpu_type, ALONE) not in own:
                kept = member.hosted == gpu_type and bool(job.placement.gpus)
                found.append((had, not kept, job.submit_time, (job.id,), gpu_type))
    for key in sorted(found):
        yield Choice(key[-2], key[-1], True)


def _urgency(
    fraction: float, received_seconds: float, deficit_seconds: float, round_seconds: float
) -> tuple[float, ...]:
    """The smaller the earlier."""
    received = round(received_seconds / round_seconds, _DIGITS)
    deficit = round(deficit_seconds / round_seconds, _DIGITS)
    return -round(priority(fraction, received), 9), -deficit, -round(fraction, 6)


class Selection:
    """Goes through a list; a gang that does not fit is passed over, and so is a job that has its part of this
    round alone or in a pair. What was chosen before a choice that is taken back stays."""

    def __init__(
        self,
        order: Iterable[Choice],
        gpus: Mapping[JobId, int],
        free: Mapping[str, int],
        own: Mapping[tuple[JobId, str], int] | None = None,
    ) -> None:
        """
        Args:
            gpus: sizes of the gangs. Jobs that are not named are passed over.
            free: GPUs to be given, by type.
            own: by job and kind, how many of the GPUs to be given a job takes that goes on with its own. A
                job that is not named takes the size of its gang.
        """
        self._rest, self._gpus, self._left, self._own = iter(order), gpus, dict(free), own or {}
        self._seen: list[Choice] = []
        self._next = 0
        """The place in the list to go on from."""
        self._taken: set[JobId] = set()
        self.refused: set[Choice] = set()
        """Those that had no place."""
        self.chosen: dict[Choice, int] = {}
        """With their places in the list, in its order."""

    def go_on(self, most_choices: float = math.inf) -> list[Choice]:
        """Choose what fits, so many at most. Returns what was chosen now."""
        found: list[Choice] = []
        most = sum(self._left.values())
        for place, choice in enumerate(self._onwards(), self._next):
            if most <= 0 or len(found) >= most_choices:
                break
            self._next = place + 1
            size, gpu_type = self._size(choice), type_of_kind(choice.gpu_type)
            if not 0 < size <= self._left.get(gpu_type, 0) or choice in self.refused:
                continue
            if self._taken.isdisjoint(choice.jobs) and all(i in self._gpus for i in choice.jobs):
                found.append(choice)
                self.chosen[choice] = place
                self._taken.update(choice.jobs)
                self._left[gpu_type] -= size
                most -= size
        return found

    def _onwards(self) -> Iterator[Choice]:
        yield from map(self._seen.__getitem__, range(self._next, len(self._seen)))
        for choice in self._rest:
            self._seen.append(choice)
            yield choice

    def after(self, place: int) -> list[Choice]:
        """What was chosen behind this place, in the order of the list."""
        behind = list(takewhile(lambda choice: self.chosen[choice] > place, reversed(self.chosen)))
        return behind[::-1]

    def cut(self, refused: Collection[Choice]) -> list[Choice]:
        """These have no place. The first of them and all that was chosen after it is taken back, and the list
        is gone on with from there. Returns them."""
        self.refused.update(refused)
        self._next = min(self.chosen[choice] for choice in refused)
        cut = self.after(self._next - 1)
        for choice in cut:
            del self.chosen[choice]
            self._taken.difference_update(choice.jobs)
            self._left[type_of_kind(choice.gpu_type)] += self._size(choice)
        return cut

    def _size(self, choice: Choice) -> int:
        """How many of the GPUs to be given it takes."""
        size = self._gpus.get(choice.jobs[0], 0)
        return min(self._own.get((i, choice.gpu_type), size) for i in choice.jobs) if self._own else size
