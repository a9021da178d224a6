# SPDX-License-Identifier: GPL-2.0-or-later
"""The books of Gavel's simulator: who is to have what, who had what, and who runs in a round. Numbers are
added in its order, so that even their last bits are the same.

Where it differs from the paper (SPEC 3.5):

* Types are gone through one after the other, not in one list. Where an allocation does not know how fast jobs
  are, the types are shuffled each round.
* Each job begins with half a round on each type. Its part of a type is its time there by that of all jobs,
  whatever their sizes; those that ended count until the next reset.
* Among jobs of equal priority those come first that had too little until the last reset.
* A job without an allocation keeps GPUs that no other job takes, but does not run. First come, first served
  gives GPUs to jobs with a fraction only.
* The allocation and the times are made anew together, some time after the last reset at the earliest. A reset
  at time 0 counts as none.
* A job is given the whole steps that fit into a round, and the round ends with the longest of these times.
* A gang with fewer steps left than GPUs gets nothing done.
* A pair ends its round with the longer of its two, and what either has done counts then. It begins without
  the half round that jobs begin with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controller.model import JobId
from controller.policies.allocations.allocation import Fractions, Jobs

Row = dict[str, float]
"""By GPU type."""
ALONE = JobId(-1)
"""In place of a partner."""


class Choice(NamedTuple):
    """One job, or the two of a pair, on a type."""

    jobs: Jobs
    gpu_type: str


@dataclass(slots=True)
class Grant:
    """What a job is to do in this round."""

    gpu_type: str
    steps: int
    until: float
    """When it has done them, and its partner what that one is to do."""
    beside: JobId = ALONE


@dataclass(slots=True, kw_only=True)
class Counted:
    """What a row of the allocation, a job or a pair, is to have and had."""

    throughput: Row
    """Steps per second; of a pair, of the slower one."""
    seconds: Row
    """On each type since the last reset, and the half round that counts begin with."""
    deficit: Row
    """Seconds that it had too little up to the last reset."""
    fractions: Row | None = None
    """Its allocation. None: it came after that was made."""

    def priority(self, gpu_type: str, total_seconds: float) -> float:
        """`total_seconds`: that all had on the type."""
        if self.fractions is None or self.throughput.get(gpu_type, 0.0) <= 0:
            return 0.0
        fraction = self.fractions.get(gpu_type, 0.0)
        part = self.seconds[gpu_type] / total_seconds if total_seconds > 0 else 0.0
        return fraction / part if part > 0 and fraction else fraction * 1e9


@dataclass(slots=True, kw_only=True)
class PairBook(Counted):
    """Of two jobs."""

    rates: Mapping[str, tuple[float, float]]
    """Steps per second of each, by type."""


@dataclass(slots=True, kw_only=True)
class Book(Counted):
    """Of one job."""

    gpus: int
    steps_left: int
    isolated_seconds: float = 0.0
    """What its steps up to the last reset would have taken on its own part of the cluster."""
    isolated_since: tuple[int, float] | None = None
    """Its steps left at the last reset, and its steps per second on that part."""
    grant: Grant | None = None

    def fails(self, grant: Grant) -> bool:
        """Whether it gets nothing done."""
        return grant.steps <= 0 or (self.gpus > 1 and grant.steps < self.gpus)


class Books:
    """All of them."""

    def __init__(
        self,
        types: Sequence[str],
        round_seconds: float,
        floor_seconds: float,
        seed: int | None,
        *,
        only_allocated: bool = False,
    ) -> None:
        """
        Args:
            types: in the order in which they are gone through.
            floor_seconds: the least time between two resets.
            seed: of the order of types in each round. None: that of `types`.
            only_allocated: a job without a fraction of a type is not given GPUs of it.
        """
        self._types, self._seed, self._only_allocated = tuple(types), seed, only_allocated
        self._round_seconds, self._floor_seconds = round_seconds, floor_seconds
        self.jobs: dict[JobId, Book] = {}
        """In the order in which they came."""
        self.pairs: dict[Jobs, PairBook] = {}
        """In that of the later of their jobs, then of the earlier."""
        self.gone: dict[Jobs, Row] = {}
        """Fractions of jobs that have ended since the last allocation."""
        self._totals = dict.fromkeys(types, 0.0)
        self._reset_at = self._ended_at = 0.0
        """The last reset; the end of the last round in which jobs ran."""
        self._news = True
        """Something happened that an allocation depends on."""
        self._random = _shuffler(seed)

    # -- jobs ----------------------------------------------------------------------------------------

    def add(
        self,
        job_id: JobId,
        gpus: int,
        throughput: Mapping[str, float],
        steps: int,
        beside: Mapping[JobId, Mapping[str, tuple[float, float]]] | None = None,
    ) -> None:
        """A job has come. `beside`: jobs of its size that are there, in the order in which they came, with
        the steps per second of each, the one of the lower id first. A type that is not named: none."""
        half, none = self._row(self._round_seconds / 2), self._row(0.0)
        self.jobs[job_id] = Book(
            gpus=gpus, throughput=dict(throughput), steps_left=steps, seconds=half, deficit=none
        )
        for other, rates in (beside or {}).items():
            known = {t: rates.get(t, (0.0, 0.0)) for t in self._types}
            self.pairs[min(job_id, other), max(job_id, other)] = PairBook(
                rates=known,
                throughput={t: min(both) for t, both in known.items()},
                seconds=self._row(0.0),
                deficit=self._row(0.0),
            )
        self._news = True

    def _row(self, number: float) -> Row:
        return dict.fromkeys(self._types, number)

    def remove(self, job_id: JobId) -> None:
        """A job has ended."""
        if (fractions := self.jobs.pop(job_id).fractions) is not None:
            self.gone[job_id,] = fractions
        self.pairs = {jobs: pair for jobs, pair in self.pairs.items() if job_id not in jobs}
        self._news = True

    def _rows(self) -> Iterator[tuple[Jobs, Counted]]:
        """Each job, and after it its pairs with those that came before."""
        later: dict[JobId, list[tuple[Jobs, Counted]]] = {}
        if self.pairs:
            came = {job_id: number for number, job_id in enumerate(self.jobs)}
            for jobs, pair in self.pairs.items():
                later.setdefault(max(jobs, key=came.__getitem__), []).append((jobs, pair))
        for job_id, book in self.jobs.items():
            yield (job_id,), book
            yield from later.get(job_id, ())

    # -- resets --------------------------------------------------------------------------------------

    def may_reset(self, now: float) -> bool:
        """Whether the allocation may be made anew, and is to."""
        return self._news and (now - self._reset_at >= self._floor_seconds or self._reset_at == 0)

    def reset(self, now: float) -> None:
        """Count what jobs receive from now on."""
        elapsed, half = now - self._reset_at, self._round_seconds / 2
        for gpu_type in self._types:
            self._totals[gpu_type] = 0.0
            for _, book in self._rows():
                received = book.seconds[gpu_type] - half
                should = book.fractions[gpu_type] * elapsed if book.fractions is not None else 0.0
                book.deficit[gpu_type] += should - received
                book.seconds[gpu_type] = half
                self._totals[gpu_type] += half
        self._reset_at, self._news = now, False

    def adopt(self, fractions: Mapping[JobId, Mapping[str, float]], pairs: Fractions | None = None) -> None:
        """The allocation that was made with the last reset: of jobs, and of pairs."""
        given: dict[Jobs, Mapping[str, float]] = {(job_id,): row for job_id, row in fractions.items()}
        given.update(pairs or {})
        self.gone = {}
        for jobs, book in self._rows():
            row = given.get(jobs)
            book.fractions = None if row is None else {t: row.get(t, 0.0) for t in self._types}

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
        rows, left, taken, chosen = dict(self._rows()), dict(workers), set[JobId](), list[Choice]()
        for gpu_type in order:
            for jobs in self._listed(gpu_type, rows):
                size = self.jobs[jobs[0]].gpus
                if size <= left.get(gpu_type, 0) and taken.isdisjoint(jobs):
                    chosen.append(Choice(jobs, gpu_type))
                    taken.update(jobs)
                    left[gpu_type] -= size
        return [choice for choice in chosen if rows[choice.jobs].fractions is not None]

    def _listed(self, gpu_type: str, rows: Mapping[Jobs, Counted]) -> list[Jobs]:
        total = self._totals[gpu_type]
        found = [
            (
                book.priority(gpu_type, total),
                book.deficit[gpu_type],
                0.0 if book.fractions is None else book.fractions[gpu_type],
                jobs,
            )
            for jobs, book in rows.items()
            if book.throughput.get(gpu_type, 0.0) > 0
        ]
        if self._only_allocated:
            found = [row for row in found if row[0] > 0]
        found.sort(key=lambda row: row[:3], reverse=True)
        return [row[3] for row in found]

    def begin(
        self, chosen: Mapping[JobId, str], now: float, beside: Mapping[JobId, JobId] | None = None
    ) -> float | None:
        """These jobs run, on these types. `beside`: partners of those that run in pairs. Returns when the
        round is over; None: no job runs."""
        partners = beside or {}
        for job_id, gpu_type in chosen.items():
            book, partner = self.jobs[job_id], partners.get(job_id, ALONE)
            speed = book.throughput[gpu_type]
            if partner != ALONE:
                jobs = (min(job_id, partner), max(job_id, partner))
                speed = self.pairs[jobs].rates[gpu_type][jobs.index(job_id)]
            most = max(1, int(speed * self._round_seconds))
            # A job that takes longer than declared goes on, round by round.
            steps = min(most, book.steps_left or most)
            book.grant = Grant(gpu_type, steps, now + steps / speed, partner)
        for _, grant, other in self._granted():
            if other is not None:
                grant.until = other.until = max(grant.until, other.until)
        return max((b.grant.until for b in self.jobs.values() if b.grant is not None), default=None)

    def _granted(self) -> list[tuple[JobId, Grant, Grant | None]]:
        """Jobs with their grants and their partners'; pairs once, with the lower id."""
        found: list[tuple[JobId, Grant, Grant | None]] = []
        for job_id, book in self.jobs.items():
            partner = None if book.grant is None else self.jobs.get(book.grant.beside)
            if book.grant is not None and (partner is None or job_id < book.grant.beside):
                found.append((job_id, book.grant, None if partner is None else partner.grant))
        return found

    def end(self) -> None:
        """The round is over: what was granted is done."""
        began = self._ended_at
        for job_id, grant, other in sorted(self._granted(), key=lambda one: (-one[1].until, one[0])):
            seconds, ids = grant.until - began, [job_id, *([grant.beside] if other is not None else [])]
            self._ended_at = max(self._ended_at, grant.until)
            grants = [grant, *([other] if other is not None else [])]
            fails = any(self.jobs[i].fails(g) for i, g in zip(ids, grants, strict=True))
            for each in ids:
                self.jobs[each].grant = None
            if fails or seconds <= 0:
                self._news = True
                continue
            for each, done in zip(ids, grants, strict=True):
                self.jobs[each].steps_left = max(0, self.jobs[each].steps_left - done.steps)
            row = self.jobs[job_id] if other is None else self.pairs[ids[0], ids[1]]
            row.seconds[grant.gpu_type] += seconds
            self._totals[grant.gpu_type] += seconds


def _shuffler(seed: int | None) -> random.Random:
    """Gavel's code has one seed for all of its generators; that for types adds 5."""
    return random.Random(None if seed is None else seed + 5)
