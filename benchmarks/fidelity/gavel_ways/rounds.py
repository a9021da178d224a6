# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds by the books of Gavel's simulator: own policies for `gandiva simulate`, named in gavel.toml.

They decide when a round is over, and when a job comes while none runs; what happens in between waits. They
know neither nodes nor memory, and what they remember is in the object: they are no way to run a cluster.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.fidelity.gavel_ways import allocations
from benchmarks.fidelity.gavel_ways.books import ALONE, Books, Grant
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from controller.model import (
    NOWHERE,
    Configuration,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Memory,
    Placement,
    Plan,
    Provenance,
    Rate,
    Snapshot,
    StateAt,
    Target,
    rate_key,
)
from controller.model.timers import TINY
from controller.policies.allocations.allocation import AllocationJob, Given, Jobs, Pair

Table = Mapping[str, Mapping[Configuration, Rate]]
MANY = 10**15
"""Steps of a job that does not tell how long it takes."""


class _Rounds:
    Settings = WaySettings
    way: ClassVar[str]
    """One of `allocations.WAYS`."""
    only_allocated: ClassVar[bool] = False
    """GPUs that are left are not given to jobs without a fraction of them."""

    def __init__(self, settings: WaySettings) -> None:
        self._settings = settings
        self._pairs = settings.space_sharing
        self._books: Books | None = None
        self._gpus: dict[str, list[GpuId]] = {}
        """By type."""
        self._due: float | None = None
        """The end of the round. None: no job runs."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """Begins a round where one is over, and gives jobs GPUs by their grants."""
        books = self._books = self._books or self._opened(snapshot)
        jobs = {job.id: job for job in snapshot.jobs.values() if _wants(job)}
        at = self._round_begins(books, jobs, snapshot.time)
        if at is not None:
            self._take_over(books, jobs, snapshot.rates)
            if books.may_reset(at):
                self._reset(books, jobs, at)
            self._begin(books, at)
        targets = self._laid_out(books, jobs)
        said = {job_id: self._words(books, job_id) for job_id in targets}
        return Plan(targets, said, wake_at=math.inf if self._due is None else max(snapshot.time, self._due))

    def _opened(self, snapshot: Snapshot) -> Books:
        for node in snapshot.nodes.values():
            for gpu in node.gpus:
                self._gpus.setdefault(gpu.model, []).append(gpu.id)
        settings, types = self._settings, sorted(self._gpus)
        first = [name for name in settings.type_order if name in types]
        # Where neither speeds nor pairs are known, the order of types is drawn.
        drawn = not self._pairs and (not self._aware or settings.throughputs == "agnostic")
        return Books(
            [*first, *(name for name in types if name not in first)],
            settings.round_seconds,
            settings.reset_seconds,
            settings.type_seed if drawn else None,
            only_allocated=self.only_allocated,
        )

    _aware: ClassVar[bool] = True
    """It reads throughputs."""

    # -- rounds ---------------------------------------------------------------------------------------

    def _round_begins(self, books: Books, jobs: Mapping[JobId, Job], now: float) -> float | None:
        """When one does, to the last bit; None: not now."""
        if self._due is not None:
            if now < self._due - TINY:
                return None
            books.end()
            return self._due
        come = [job.submit_time for job in jobs.values() if job.id not in books.jobs]
        if not come:
            return None
        return max(come) if abs(max(come) - now) < TINY else now

    def _take_over(self, books: Books, jobs: Mapping[JobId, Job], rates: Table) -> None:
        """Who came and went."""
        for job_id in [job_id for job_id in books.jobs if job_id not in jobs]:
            books.remove(job_id)
        come = [job for job in jobs.values() if job.id not in books.jobs]
        for job in sorted(come, key=lambda job: (job.submit_time, job.id)):
            types = [
                name
                for name, gpus in self._gpus.items()
                if len(gpus) >= job.gpus and name in (job.request.gpu_types or self._gpus)
            ]
            known = _known(rates, rate_key(job), job.gpus)
            fastest = max(known.values(), default=1.0)
            own = {name: known.get(name, fastest) for name in types}
            duration = job.request.duration_seconds
            named = own.get(self._settings.duration_type, 0.0) or max(own.values(), default=0.0)
            steps = MANY if duration is None else max(1, round(duration * named))
            beside = {
                other: _together(rates, *sorted((job, jobs[other]), key=lambda one: one.id))
                for other, book in books.jobs.items()
                if self._pairs and book.gpus == job.gpus
            }
            books.add(job.id, job.gpus, own, steps, beside)

    def _reset(self, books: Books, jobs: Mapping[JobId, Job], at: float) -> None:
        """Allocate anew."""
        books.reset(at)
        if books.jobs:
            allocated = allocations.allocate(self.way, self._settings, self._given(books, jobs, at))
            alone = {rows[0]: row for rows, row in allocated.fractions.items() if len(rows) == 1}
            books.adopt(alone, {rows: row for rows, row in allocated.fractions.items() if len(rows) > 1})

    def _given(self, books: Books, jobs: Mapping[JobId, Job], at: float) -> Given:
        """With the numbers of the books."""
        rows = [*(((job_id,), book) for job_id, book in books.jobs.items()), *books.pairs.items()]
        previous: dict[Jobs, Mapping[str, float]] = dict(books.gone)
        previous.update({keys: row.fractions for keys, row in rows if row.fractions is not None})
        workers = {name: len(self._gpus[name]) for name in sorted(self._gpus)}
        return Given(
            types=tuple(workers),
            workers=workers,
            prices={name: self._settings.prices.get(name, 1.0) for name in workers},
            jobs=tuple(
                AllocationJob(
                    id=job_id,
                    gpus=book.gpus,
                    weight=jobs[job_id].request.weight,
                    throughput=book.throughput,
                    steps_left=float(book.steps_left) if book.steps_left < MANY else None,
                    seconds_so_far=at - jobs[job_id].submit_time,
                    isolated_seconds=book.isolated_seconds,
                    arrival=jobs[job_id].submit_time,
                    entity=jobs[job_id].account,
                )
                for job_id, book in books.jobs.items()
            ),
            pairs=tuple(Pair((one, other), pair.rates) for (one, other), pair in books.pairs.items()),
            previous=previous,
        )

    def _begin(self, books: Books, at: float) -> None:
        """The next round."""
        types, partners = dict[JobId, str](), dict[JobId, JobId]()
        for choice in books.choose({name: len(gpus) for name, gpus in self._gpus.items()}):
            types.update(dict.fromkeys(choice.jobs, choice.gpu_type))
            if len(choice.jobs) == 2:
                one, other = choice.jobs
                partners.update({one: other, other: one})
        self._due = books.begin(types, at, partners)

    # -- GPUs -----------------------------------------------------------------------------------------

    def _laid_out(self, books: Books, jobs: Mapping[JobId, Job]) -> dict[JobId, Target]:
        """Jobs that run on the type of their grant keep their GPUs; the others leave theirs, and start where
        GPUs of their type are free."""
        targets, taken, waiting = dict[JobId, Target](), set[GpuId](), list[list[Job]]()
        for job in jobs.values():
            if job.switching or job.leaving:
                taken |= job.placement.gpus | job.promised if not job.leaving else job.promised
        for unit in self._units(books, jobs):
            if any(job.switching or job.leaving for job in unit):
                continue
            here = next((job for job in unit if self._stays(books, job, taken)), None)
            if here is None:
                waiting.append(unit)
            else:
                taken |= here.placement.gpus
                self._put(unit, here.placement.gpus, targets)
        for job in jobs.values():
            if job.placement.gpus and not job.switching and not job.leaving and _grant(books, job) is None:
                targets[job.id] = Target(NOWHERE, StateAt.STORE)
        for unit in waiting:
            grant = books.jobs[unit[0].id].grant
            assert grant is not None
            free = [gpu for gpu in self._gpus[grant.gpu_type] if gpu not in taken]
            gpus = frozenset(free[: unit[0].gpus])
            if len(gpus) == unit[0].gpus:
                taken |= gpus
            self._put(unit, gpus if len(gpus) == unit[0].gpus else frozenset(), targets)
        return {i: to for i, to in targets.items() if to.placement != jobs[i].placement}

    def _units(self, books: Books, jobs: Mapping[JobId, Job]) -> Iterable[list[Job]]:
        """Jobs and pairs with a grant."""
        for job_id, book in books.jobs.items():
            if book.grant is not None and job_id in jobs:
                partner = jobs.get(book.grant.beside)
                if partner is None:
                    yield [jobs[job_id]]
                elif job_id < partner.id:
                    yield [jobs[job_id], partner]

    def _stays(self, books: Books, job: Job, taken: Iterable[GpuId]) -> bool:
        grant, gpus = _grant(books, job), job.placement.gpus
        return (
            bool(gpus) and grant is not None and self._type(gpus) == grant.gpu_type and gpus.isdisjoint(taken)
        )

    def _type(self, gpus: GpuSet) -> str:
        return next(name for name, own in self._gpus.items() if min(gpus) in own)

    def _put(self, unit: list[Job], gpus: GpuSet, targets: dict[JobId, Target]) -> None:
        """They are to run there together. A job that is elsewhere leaves first."""
        ids = frozenset(job.id for job in unit if gpus and job.placement.gpus in (gpus, frozenset()))
        for job in unit:
            if job.id in ids:
                allocation = job.placement.allocation or gpus
                targets[job.id] = Target(Placement(gpus, allocation, ids - {job.id}))
            elif job.placement.gpus:
                targets[job.id] = Target(NOWHERE, StateAt.STORE)

    def _words(self, books: Books, job_id: JobId) -> str:
        book = books.jobs.get(job_id)
        if book is None or book.grant is None:
            return "its round is over"
        beside = "" if book.grant.beside == ALONE else f" beside job {book.grant.beside}"
        return f"its turn on {book.grant.gpu_type}{beside}"


def _grant(books: Books, job: Job) -> Grant | None:
    book = books.jobs.get(job.id)
    return None if book is None else book.grant


def _wants(job: Job) -> bool:
    on_its_way = job.switching or job.leaving or job.held_until is not None
    return on_its_way or bool(job.placement.gpus) or job.may_start


def _known(rates: Table, model: str, gpus: int, beside: tuple[str, ...] = ()) -> dict[str, float]:
    """Samples per second by type, on as few nodes as is known. Estimates do not count."""
    alone = (
        (where.nodes, where.gpu_type, rate.samples_per_second)
        for where, rate in rates.get(model, {}).items()
        if (where.gpus, where.models_beside) == (gpus, beside) and rate.provenance is not Provenance.ESTIMATED
    )
    return {name: speed for _, name, speed in sorted(alone, reverse=True)}


def _together(rates: Table, one: Job, other: Job) -> dict[str, tuple[float, float]]:
    """Those of two jobs on the same GPUs, on the types where both are known, also alone."""
    first, second = rate_key(one), rate_key(other)
    there = _known(rates, first, one.gpus, (second,))
    back = _known(rates, second, one.gpus, (first,))
    types = back.keys() & _known(rates, first, one.gpus).keys() & _known(rates, second, one.gpus).keys()
    return {name: (rate, back[name]) for name, rate in there.items() if name in types}


class _SharesAlone(_Rounds):
    _aware = False


class Isolated(_SharesAlone):
    way = "isolated"


class Proportional(_SharesAlone):
    way = "proportional"


class Las(_Rounds):
    way = "gavel-las"


class Makespan(_Rounds):
    way = "gavel-makespan"


class FinishTime(_Rounds):
    way = "gavel-ftf"

    def _reset(self, books: Books, jobs: Mapping[JobId, Job], at: float) -> None:
        own = allocations.FinishTime(self._settings)
        books.count_isolated(own.isolated_rates(self._given(books, jobs, at)))
        super()._reset(books, jobs, at)


class Fifo(_Rounds):
    way = "gavel-fifo"
    only_allocated = True


class Allox(_Rounds):
    way = "allox"


class MaxThroughput(_Rounds):
    way = "gavel-max-throughput"


class Cost(_Rounds):
    way = "gavel-cost"


class CostSlo(_Rounds):
    way = "gavel-cost-slo"


class Hierarchical(_Rounds):
    way = "gavel-hierarchical"


class RandomPairs(_Rounds):
    way = "gavel-gandiva"

    def __init__(self, settings: WaySettings) -> None:
        super().__init__(settings)
        self._pairs = True
