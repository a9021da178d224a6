# SPDX-License-Identifier: GPL-2.0-or-later
"""The books of Gavel's simulator: who is to have what, who had what, and who runs in a round. Numbers are
added in its order, so that even their last bits are the same.

Where it differs from the paper (SPEC 3.5):

* Types are gone through one after the other, not in one list. Where an allocation does not know how fast jobs
  are, the types are shuffled each round.
* Each job begins with half a round on each type. Its part of a type is its time there by that of all jobs,
  whatever their sizes; those that ended count until the next reset.
* Among jobs of equal priority those come first that had too little until the last reset.
* A job without an allocation keeps GPUs that nobody else takes, but does not run.
* The allocation and the times are made anew together, some time after the last reset at the earliest. A reset
  at time 0 counts as none.
* A job is given the whole steps that fit into a round, and the round ends with the longest of these times.
* A gang with fewer steps left than GPUs gets nothing done.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.model import JobId
from controller.policies.mechanisms.rounds.choosing import Choice, choose

Row = dict[str, float]
"""By GPU type."""


@dataclass(slots=True)
class Grant:
    """What a job is to do in this round."""

    gpu_type: str
    steps: int
    until: float
    """When it has done them."""


@dataclass(slots=True)
class Book:
    """Of one job."""

    gpus: int
    throughput: Row
    """Steps per second."""
    steps_left: int
    seconds: Row
    """On each type since the last reset, and the half round that all begin with."""
    deficit: Row
    """Seconds that it had too little up to the last reset."""
    fractions: Row | None = None
    """Its allocation. None: it came after that was made."""
    isolated_seconds: float = 0.0
    """What its steps up to the last reset would have taken on its own part of the cluster."""
    isolated_since: tuple[int, float] | None = None
    """Its steps left at the last reset, and its steps per second on that part."""
    grant: Grant | None = None

    def priority(self, gpu_type: str, total_seconds: float) -> float:
        """`total_seconds`: that all jobs had on the type."""
        if self.fractions is None or self.throughput.get(gpu_type, 0.0) <= 0:
            return 0.0
        fraction = self.fractions.get(gpu_type, 0.0)
        part = self.seconds[gpu_type] / total_seconds if total_seconds > 0 else 0.0
        return fraction / part if part > 0 and fraction else fraction * 1e9

    def fails(self, grant: Grant) -> bool:
        """Whether it gets nothing done."""
        return grant.steps <= 0 or (self.gpus > 1 and grant.steps < self.gpus)


class Books:
    """All of them."""

    def __init__(
        self, types: Sequence[str], round_seconds: float, floor_seconds: float, seed: int | None
    ) -> None:
        """
        Args:
            types: in the order in which they are gone through.
            floor_seconds: the least time between two resets.
            seed: of the order of types in each round. None: that of `types`.
        """
        self._types, self._seed = tuple(types), seed
        self._round_seconds, self._floor_seconds = round_seconds, floor_seconds
        self.jobs: dict[JobId, Book] = {}
        """In the order in which they came."""
        self._totals = dict.fromkeys(types, 0.0)
        self._reset_at = self._ended_at = 0.0
        """The last reset; the end of the last round in which jobs ran."""
        self._news = True
        """Something happened that an allocation depends on."""
        self._shuffles = 0
        self._random = _shuffler(seed)

    # -- jobs ----------------------------------------------------------------------------------------

    def add(self, job_id: JobId, gpus: int, throughput: Mapping[str, float], steps: int) -> None:
        """A job has come."""
        half, none = dict.fromkeys(self._types, self._round_seconds / 2), dict.fromkeys(self._types, 0.0)
        self.jobs[job_id] = Book(gpus, dict(throughput), steps, half, none)
        self._news = True

    def remove(self, job_id: JobId) -> None:
        """A job has ended."""
        del self.jobs[job_id]
        self._news = True

    # -- resets --------------------------------------------------------------------------------------

    def may_reset(self, now: float) -> bool:
        """Whether the allocation may be made anew, and is to."""
        return self._news and (now - self._reset_at >= self._floor_seconds or self._reset_at == 0)

    def reset(self, now: float) -> None:
        """Count what jobs receive from now on."""
        elapsed, half = now - self._reset_at, self._round_seconds / 2
        for gpu_type in self._types:
            self._totals[gpu_type] = 0.0
            for book in self.jobs.values():
                received = book.seconds[gpu_type] - half
                should = book.fractions[gpu_type] * elapsed if book.fractions is not None else 0.0
                book.deficit[gpu_type] += should - received
                book.seconds[gpu_type] = half
                self._totals[gpu_type] += half
        self._reset_at, self._news = now, False

    def adopt(self, fractions: Mapping[JobId, Mapping[str, float]]) -> None:
        """The allocation that was made with the last reset."""
        for job_id, book in self.jobs.items():
            given = fractions.get(job_id)
            book.fractions = None if given is None else {t: given.get(t, 0.0) for t in self._types}

    def count_isolated(self, rates: Mapping[JobId, float]) -> None:
        """A reset follows. `rates`: steps per second of each job on its own part of the cluster, from now
        on."""
        for job_id, book in self.jobs.items():
            if book.isolated_since is not None:
                steps_left, rate = book.isolated_since
                book.isolated_seconds += (steps_left - book.steps_left) / rate
            book.isolated_since = (book.steps_left, rates[job_id])

    # -- rounds --------------------------------------------------------------------------------------

    def choose(self, workers: Mapping[str, int]) -> list[Choice]:
        """Who runs in the next round. `workers`: GPUs by type."""
        order = list(self._types)
        if self._seed is not None:
            self._random.shuffle(order)
            self._shuffles += 1
        listed = [Choice((job_id,), gpu_type) for gpu_type in order for job_id in self._listed(gpu_type)]
        gpus = {job_id: book.gpus for job_id, book in self.jobs.items()}
        chosen = choose(listed, gpus, workers)
        return [choice for choice in chosen if self.jobs[choice.jobs[0]].fractions is not None]

    def _listed(self, gpu_type: str) -> list[JobId]:
        total = self._totals[gpu_type]
        rows = [
            (
                book.priority(gpu_type, total),
                book.deficit[gpu_type],
                0.0 if book.fractions is None else book.fractions[gpu_type],
                job_id,
            )
            for job_id, book in self.jobs.items()
            if book.throughput.get(gpu_type, 0.0) > 0
        ]
        rows.sort(key=lambda row: row[:3], reverse=True)
        return [row[3] for row in rows]

    def begin(self, chosen: Mapping[JobId, str], now: float) -> float | None:
        """These jobs run, on these types. Returns when the round is over; None: no job runs."""
        for job_id, gpu_type in chosen.items():
            book = self.jobs[job_id]
            speed = book.throughput[gpu_type]
            most = max(1, int(speed * self._round_seconds))
            # A job that takes longer than declared goes on, round by round.
            steps = min(most, book.steps_left or most)
            book.grant = Grant(gpu_type, steps, now + steps / speed)
        return max((b.grant.until for b in self.jobs.values() if b.grant is not None), default=None)

    def end(self) -> None:
        """The round is over: what was granted is done."""
        began = self._ended_at
        granted = [(b.grant.until, job_id) for job_id, b in self.jobs.items() if b.grant is not None]
        for until, job_id in sorted(granted, key=lambda one: (-one[0], one[1])):
            book = self.jobs[job_id]
            assert book.grant is not None
            grant, seconds = book.grant, until - began
            book.grant, self._ended_at = None, max(self._ended_at, until)
            if book.fails(grant) or seconds <= 0:
                self._news = True
                continue
            book.steps_left = max(0, book.steps_left - grant.steps)
            book.seconds[grant.gpu_type] += seconds
            self._totals[grant.gpu_type] += seconds

    # -- memory --------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """JSON."""
        return [
            dict(self._totals),
            self._reset_at,
            self._ended_at,
            self._news,
            self._shuffles,
            [[job_id, *_dump_book(book)] for job_id, book in self.jobs.items()],
        ]

    def load(self, raw: Any) -> None:
        """Undo `dump`. Raises ValueError, TypeError, KeyError."""
        totals, reset_at, ended_at, news, shuffles, jobs = raw
        if set(totals) != set(self._types):
            return  # Other GPUs: everything is counted anew.
        self._totals, self._reset_at, self._ended_at = dict(totals), float(reset_at), float(ended_at)
        self._news, self._shuffles = bool(news), int(shuffles)
        for _ in range(self._shuffles):
            self._random.shuffle(list(self._types))
        self.jobs = {JobId(job_id): _load_book(row) for job_id, *row in jobs}


def _shuffler(seed: int | None) -> random.Random:
    """Gavel's code has one seed for all of its generators; that for types adds 5."""
    return random.Random(None if seed is None else seed + 5)


def _dump_book(book: Book) -> list[Any]:
    grant = book.grant
    return [
        book.gpus,
        dict(book.throughput),
        book.steps_left,
        dict(book.seconds),
        dict(book.deficit),
        None if book.fractions is None else dict(book.fractions),
        book.isolated_seconds,
        None if book.isolated_since is None else list(book.isolated_since),
        None if grant is None else [grant.gpu_type, grant.steps, grant.until],
    ]


def _load_book(row: list[Any]) -> Book:
    gpus, throughput, steps_left, seconds, deficit, fractions, isolated_seconds, since, grant = row
    book = Book(gpus, throughput, steps_left, seconds, deficit, fractions, isolated_seconds)
    book.isolated_since = None if since is None else (since[0], since[1])
    book.grant = None if grant is None else Grant(*grant)
    return book
