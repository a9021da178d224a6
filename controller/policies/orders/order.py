# SPDX-License-Identifier: GPL-2.0-or-later
"""What an order is: who comes first among the jobs that compete for the same GPUs.

All methods are pure functions of what they are given. The note of a job, a tuple of JSON scalars, is an
order's only memory of it. `i` counts within one plan: `(now, i)` is unique and rises.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from controller.model import Job, Note, Usage

Rank: TypeAlias = tuple[Any, ...]
"""A job's place: the smaller the earlier. Ranks of one order have the same shape."""

Peer: TypeAlias = tuple[Job, Usage, Note]


def gpus_words(count: int) -> str:
    """`a free GPU`, `4 free GPUs`."""
    return "a free GPU" if count == 1 else f"{count} free GPUs"


def numbers(raw: object) -> list[float]:
    """The numbers of a list out of the journal; none where it is damaged."""
    found = list(raw) if isinstance(raw, list | tuple) else []
    return found if all(isinstance(item, int | float) and math.isfinite(item) for item in found) else []


class Order(ABC):
    """Base class. The mechanism puts the priority class before the rank and the job id behind it."""

    epoch_seconds: float = math.inf
    """How long ranks of running jobs hold; then all are asked for anew. 0: with each plan."""
    polled = False
    """`until` of running jobs is asked for again with each plan, and may depend on when it is asked.
    Infinity: not before the job is stopped or its note changes."""

    def read(self, note: Note) -> Note:
        """A note out of the journal. None where it makes no sense: then the job enters anew."""
        return note

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        """The note of a job that came. `peers`: the jobs it will compete with."""
        return None

    @abstractmethod
    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        """The job's place. That of a job off its GPUs must not depend on `now`."""

    def ranks(self, peers: Sequence[Peer], now: float) -> list[Rank]:
        """The places of jobs that take turns on the same GPUs, in the order of `peers`."""
        return [self.rank(job, usage, note, now) for job, usage, note in peers]

    def turned(self, peers: Sequence[Peer], now: float) -> list[Note]:
        """The notes of jobs that take turns on the same GPUs, when a slice is over there."""
        return [note for _, _, note in peers]

    def seen(self, job: Job, usage: Usage, note: Note, now: float) -> Note:
        """The note of a job that was observed to differ from what was known."""
        return note

    def epoch(self, now: float) -> float:
        """When the present epoch began."""
        if self.epoch_seconds == math.inf:
            return 0.0
        return now // self.epoch_seconds * self.epoch_seconds if self.epoch_seconds else now

    def epoch_end(self, now: float) -> float:
        """When the next one begins, if nothing else happens."""
        return self.epoch(now) + self.epoch_seconds if self.epoch_seconds else math.inf

    def until(self, job: Job, usage: Usage, note: Note, now: float) -> float:
        """When note or rank change by themselves, if the job goes on as it is. Must not be later because it
        is asked later."""
        return math.inf

    def advance(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        """The note after `until` has come."""
        return note

    def unsettled(self, note: Note) -> bool:
        """Whether `advance` made the note, and it is to be settled when the decision that follows is whole:
        that may take several plans."""
        return False

    def settle(self, job: Job, usage: Usage, note: Note, now: float, i: int) -> Note:
        """The note of a job that this plan starts or stops, or that goes on although it is unsettled; `usage`
        is as it is from now on."""
        return note

    def ended(self, common: Mapping[str, Any], usage: Usage, now: float) -> Mapping[str, Any]:
        """What is remembered beyond jobs, after a job with this usage ended. The same object when that
        changes nothing."""
        return common

    def recall(self, common: Mapping[str, Any]) -> Order:
        """The order that this memory makes; its ranks may be others. The same object when they are not."""
        return self

    def words(self, job: Job, usage: Usage, note: Note, now: float) -> str:
        """Why the job waits, for people."""
        return f"waits for {gpus_words(job.gpus)}"
