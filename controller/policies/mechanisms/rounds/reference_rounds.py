# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds by the books of Gavel's simulator, for comparisons with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from controller.model import GpuSet, Job, JobId, Memory, Placement, Snapshot, rate_key
from controller.model.timers import TINY
from controller.policies.allocations.allocation import AllocationJob, Fractions, Given, Jobs, Pair
from controller.policies.mechanisms.rounds.choosing import Choice
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pairs import Sharing
from controller.policies.mechanisms.rounds.policy import Rounds
from controller.policies.mechanisms.rounds.reference import Books
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.rounds.solving import PATIENCE_SECONDS, Stated
from controller.policies.mechanisms.rounds.speeds import Speeds
from controller.policies.moves.move import Move
from controller.policies.placement.draft import Draft

IsolatedRates = Callable[[Given], Mapping[JobId, float]]


class AnySharing(Sharing):
    """Any two jobs may share GPUs."""

    def may_join(self, job: Job, host: Job, gpus: GpuSet) -> bool:
        return True


class ReferenceRounds(Rounds):
    """An allocation, composed into a policy. It decides when a round is over, and when a job comes while none
    runs; what happens in between waits. Implements `Ordering`."""

    _estimates = False

    def __init__(
        self,
        allocation: Stated,
        settings: RoundSettings,
        *,
        name: str = "allocation",
        moves: Sequence[Move] = (),
        shuffled: bool = False,
        isolated_rates: IsolatedRates | None = None,
        pairs: bool = False,
        only_allocated: bool = False,
    ) -> None:
        """
        Args:
            shuffled: the order of types is drawn in each round.
            isolated_rates: for an allocation that reads what jobs would have done on their own part.
            pairs: any two of one size may be allocated the same GPUs.
            only_allocated: GPUs that are left are not given to jobs without a fraction of them.
        """
        self._only_allocated = only_allocated
        self._seed = settings.type_seed if shuffled else None
        self._isolated_rates = isolated_rates
        settings = settings.model_copy(
            update={"change_types": True, "refill": False, "placement_sensitive": False}
        )
        super().__init__(allocation, settings, name=name, moves=moves, ordering=self, pairs=pairs)

    def order(
        self, members: Iterable[Member], types: Collection[str], now: float, round_seconds: float
    ) -> list[Choice]:
        present = {member.id for member in members}
        return [choice for choice in self._books.choose(self._workers) if present.issuperset(choice.jobs)]

    # -- memory ---------------------------------------------------------------------------------------

    def _reset(self, snapshot: Snapshot, memory: Memory) -> None:
        super()._reset(snapshot, memory)
        settings, types = self._settings, self._pools.types
        first = [t for t in settings.type_order if t in types]
        in_order = [*first, *(t for t in types if t not in first)]
        self._books = Books(
            in_order,
            settings.round_seconds,
            settings.reset_seconds,
            self._seed,
            only_allocated=self._only_allocated,
        )
        try:
            if (kept := self._common.get("books")) is not None:
                self._books.load(kept)
        except (ValueError, TypeError, KeyError):
            pass  # It is another policy's or damaged: then everything is counted anew.
        self._beginning = self._solving.under_way
        """A round is to begin, perhaps only when the allocation is there."""
        self._at = self._reset_at or 0.0
        """When that is, to the last bit. An allocation that is under way is that of the last reset."""
        self._dumped = self._books.dump()

    def _own_common(self) -> dict[str, Any]:
        if self._beginning:
            self._dumped = self._books.dump()
        return {**super()._own_common(), "books": self._dumped}

    # -- the allocation -------------------------------------------------------------------------------

    def _allocate(self, snapshot: Snapshot) -> None:
        asks = self._solving.under_way
        if not asks:
            self._beginning = self._round_begins(snapshot)
            if self._beginning and self._books.may_reset(self._at):
                self._count_isolated()
                self._books.reset(self._at)
                self._reset_at, asks = self._at, bool(self._books.jobs)
        fractions: Fractions | None = None
        self._solving.problems = {}
        if asks:
            wanted, retry_at = repr(self._reset_at), self._now + self._settings.round_seconds
            fractions = self._solving.read(snapshot, retry_at)
            if self._solving.wants(snapshot.time, wanted):
                fractions = self._solving.ask(snapshot, wanted, retry_at, self._given) or fractions
        if fractions is not None:
            alone = {jobs[0]: row for jobs, row in fractions.items() if len(jobs) == 1}
            self._books.adopt(alone, {jobs: row for jobs, row in fractions.items() if len(jobs) > 1})
            for member in self._members.values():
                member.allocated = (member.id,) in fractions
                for gpu_type, fraction in fractions.get((member.id,), {}).items():
                    member.account(gpu_type).fraction = fraction

    def _round_begins(self, snapshot: Snapshot) -> bool:
        """Whether one does now. Takes over who came and went."""
        over = self._due is not None and self._now >= self._due - TINY
        come = [m for m in self._members.values() if m.id in self._digests and m.id not in self._books.jobs]
        if not over and (self._due is not None or not come):
            return False
        if over:
            assert self._due is not None
            self._at = self._due
            self._books.end()
        else:
            newest = max(member.job.submit_time for member in come)
            self._at = newest if abs(newest - self._now) < TINY else self._now
        for job_id in [i for i in self._books.jobs if i not in self._digests]:
            self._books.remove(job_id)
        speeds = Speeds(snapshot.rates, self._estimates)
        for member in sorted(come, key=lambda m: (m.job.submit_time, m.id)):
            rates = speeds.alone(member)
            beside = self._beside(member, speeds) if self._pairing.on else {}
            self._books.add(member.id, member.job.gpus, rates, self._steps_of(member, rates), beside)
        return True

    def _beside(self, member: Member, speeds: Speeds) -> dict[JobId, Mapping[str, tuple[float, float]]]:
        """Its rates with each job of its size, on the types where both are known."""
        found: dict[JobId, Mapping[str, tuple[float, float]]] = {}
        gpus = member.job.gpus
        for other_id in [i for i, book in self._books.jobs.items() if book.gpus == gpus]:
            one, other = sorted((member.id, other_id))
            names = [rate_key(self._members[job_id].job) for job_id in (one, other)]
            found[other_id] = speeds.together(gpus).get(names[0], {}).get(names[1], {})
        return found

    def _steps_of(self, member: Member, rates: Mapping[str, float]) -> int:
        """From the declared duration."""
        duration = member.job.request.duration_seconds
        named = rates.get(self._settings.duration_type, 0.0) or max(rates.values(), default=0.0)
        return _MANY if duration is None else max(1, round(duration * named))

    def _given(self) -> Given:
        """With the numbers of the books."""
        jobs = []
        for job_id, book in self._books.jobs.items():
            job = self._members[job_id].job
            jobs.append(
                AllocationJob(
                    id=job_id,
                    gpus=book.gpus,
                    weight=job.request.weight,
                    throughput=book.throughput,
                    steps_left=float(book.steps_left) if book.steps_left < _MANY else None,
                    seconds_so_far=self._at - job.submit_time,
                    isolated_seconds=book.isolated_seconds if self._isolated_rates is not None else None,
                    arrival=job.submit_time,
                    entity=job.account,
                )
            )
        pairs = tuple(Pair((a, b), pair.rates) for (a, b), pair in self._books.pairs.items())
        rows = [*(((job_id,), book) for job_id, book in self._books.jobs.items()), *self._books.pairs.items()]
        previous: dict[Jobs, Mapping[str, float]] = dict(self._books.gone)
        previous.update({jobs: row.fractions for jobs, row in rows if row.fractions is not None})
        workers = self._workers
        return Given(types=tuple(workers), workers=workers, jobs=tuple(jobs), pairs=pairs, previous=previous)

    def _count_isolated(self) -> None:
        if self._isolated_rates is not None:
            self._books.count_isolated(self._isolated_rates(self._given()))

    # -- sharing --------------------------------------------------------------------------------------

    def _look(self, snapshot: Snapshot) -> Sharing:
        return AnySharing(snapshot)

    def _part(self, snapshot: Snapshot, draft: Draft, sharing: Collection[JobId]) -> None:
        """The simulator knows no memory."""

    # -- deciding -------------------------------------------------------------------------------------

    def _decide(self, draft: Draft) -> Mapping[JobId, Placement]:
        if self._solving.under_way:
            return {}
        if self._beginning:
            self._deciding.list_all(self._now)
            self._deciding.begin_round(draft, self._now)
            chosen = {m.id: m.assigned for m in self._members.values() if m.assigned}
            beside = {job_id: self._members[job_id].beside for job_id in chosen}
            self._due = self._books.begin(chosen, self._at, beside)
            self._changed.update(self._members)
        elif self._ready:
            self._changed |= self._deciding.go_on(draft, self._now, allocating=False)
        self._ready = False
        return {}

    def _wake(self) -> float:
        if self._solving.under_way:
            return self._now + PATIENCE_SECONDS
        return math.inf if self._due is None else self._due


_MANY = 10**15
"""Steps of a job that does not tell how long it takes."""
