# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds: an allocation says which fraction of the time each job is to run on each GPU type, and round by
round those run that are furthest behind theirs.

A round begins when the one before is over. Jobs that are chosen again for their type keep their GPUs: they
are not stopped. In between, GPUs that become free are given to jobs that wait. The allocation is computed
anew when jobs or GPUs come or go; until it is there, the last one goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from controller.model import Changes, Job, JobId, Note, Placement, Reason, Snapshot, Usage, Why
from controller.model.timers import TINY
from controller.policies.allocations.allocation import Given, Pair
from controller.policies.allocations.table import FractionTable, tabulated
from controller.policies.budget import CHANGE
from controller.policies.mechanisms.mechanism import Mechanism
from controller.policies.mechanisms.rounds import words
from controller.policies.mechanisms.rounds.eligibility import Eligibility
from controller.policies.mechanisms.rounds.given import NO_TERMS, Terms, equal_share, make_given
from controller.policies.mechanisms.rounds.in_force import ALONE, InForce
from controller.policies.mechanisms.rounds.kinds import is_scattered
from controller.policies.mechanisms.rounds.layout import PendingLayout
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.memory import RoundMemory
from controller.policies.mechanisms.rounds.pairs import SharingRules, digest, find_pairs
from controller.policies.mechanisms.rounds.planner import RoundPlanner
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.problem import FIRST_PATIENCE_SECONDS, AllocationProblem, Stated
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.rounds.speeds import Speeds
from controller.policies.mechanisms.row import Row, taken
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import held
from controller.policies.recalled import recalled


class Rounds(Mechanism):
    """An allocation in rounds."""

    def __init__(
        self,
        allocation: Stated,
        settings: RoundSettings,
        *,
        name: str = "allocation",
        terms: Terms = NO_TERMS,
        pairs: bool = False,
    ) -> None:
        """
        Args:
            name: of the problems that it states.
            pairs: two jobs may be allocated the same GPUs at the same time.
        """
        self._allocation, self._name = allocation, name
        self._terms, self._pairs, self._settings = terms, pairs, settings
        self._kept_waiting = False
        """At the last decision jobs waited for an allocation. It may fail."""

    # -- memory ---------------------------------------------------------------------------------------

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        self._members = cast(Mapping[JobId, Member], rows)
        self._pools = Pools(snapshot.nodes, self._members)
        self._workers = self._pools.workers()
        self._in_force = InForce(common.get("fractions"))
        pairs = self._pairs
        self._planner = RoundPlanner(self._pools, self._members, self._in_force, self._settings, pairs=pairs)
        self._pending: PendingLayout | None = None
        """Of a round that begins, and not said yet."""
        self._digests: dict[JobId, int] = {}
        """Of what an allocation is given of each job."""
        self._digested: dict[JobId, tuple[object, int]] = {}
        """Of what they were made last."""
        self._digest = digest(sorted(self._workers.items()))
        """Of all of them, and of the GPUs."""
        self._speeds = Speeds(snapshot.rates)
        """As the digests have them."""
        self._eligibility = Eligibility(self._settings, self._pools, self._members, self._speeds, pairs=pairs)
        self._ready = True
        """Something changed since the last decision."""
        self._memory = recalled(common.get("rounds"), RoundMemory, RoundMemory())
        if not self._in_force.rows:
            self._memory.solved = ""  # where its fractions are lost an allocation is asked for anew
        self._problem = AllocationProblem(self._allocation, self._name, self._memory)

    def common(self) -> Mapping[str, Any]:
        return {"rounds": dict(vars(self._memory)), "fractions": self._in_force.remembered()}

    def notes(self) -> Mapping[JobId, Note]:
        for job_id in (self.changed | self._renewed) & self._members.keys():
            member = self._members[job_id]
            note = member.remembered()
            if note != member.note:
                member.note = self._notes[job_id] = note
        return self._notes

    # -- who has what ---------------------------------------------------------------------------------

    def change(self, job_id: JobId, before: Placement, after: Placement) -> None:
        self._pools.gpus.hold(job_id, taken(job_id, after, self._members))

    def held(self, job: Job) -> Placement:
        return held(self._pools.gpus, job)

    # -- what is observed -----------------------------------------------------------------------------

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        same = self._pools.same(snapshot.nodes, changed.nodes)
        self._ready = self._ready or bool(changed.nodes)
        return same

    def begin(self, snapshot: Snapshot) -> None:
        self._now, self._notes = snapshot.time, dict[JobId, Note]()
        self.changed: set[JobId] = set()
        self._renewed: Set[JobId] = set()
        """Jobs of which something else is to be remembered, besides."""

    def row(self, job: Job, usage: Usage, note: Note) -> Row:
        member = Member(job, usage)
        member.recall(note)
        return member

    def leave(self, row: Row) -> None:
        if self._pending is not None:
            self._pending.leave(row)

    def ended(self, job_id: JobId, row: Row | None, note: Note, usage: Usage) -> None:
        if row is not None or note is not None:
            self._notes[job_id] = None
        self._ready = True
        self._digested.pop(job_id, None)
        self._give_digest(job_id, 0)
        self._planner.forget(job_id)

    def follow(self, rows: Sequence[Row]) -> None:
        self._touched = len(rows)
        self._ready = self._ready or bool(rows)
        for member in self._members.values() if self._pairs else ():
            if member.beside != ALONE and member.beside not in self._members:
                member.lose_partner(self._now)
                self.changed.add(member.id)
        for row in rows:
            member = self._members[row.id]
            self._eligibility.see(member)
            self._planner.see(member)
            self.changed.add(row.id)
            self._give_digest(row.id, self._digest_of(member))

    def _digest_of(self, member: Member) -> int:
        if not self._eligibility.wants(member):
            return 0
        job, member.rates = member.job, self._speeds.alone(member)
        request = job.request
        own = (job.id, member.gpus, request.weight, job.account, job.deadline_at, request.duration_seconds)
        content = (*own, member.rates)
        known, found = self._digested.get(job.id, (None, 0))
        if content != known:
            member.stated = None
            found = digest([*content[:-1], *member.rates.items()])
            self._digested[job.id] = content, found
        return found

    def _give_digest(self, job_id: JobId, new: int) -> None:
        self._digest ^= self._digests.pop(job_id, 0) ^ new
        if new:
            self._digests[job_id] = new

    # -- the allocation -------------------------------------------------------------------------------

    def _allocate(self, snapshot: Snapshot) -> None:
        due = self._memory.due is not None and self._now >= self._memory.due - TINY
        retry_at = self._now + self._settings.round_seconds
        # In every plan: a failure is announced once, also when no job is left to be allocated.
        self._adopt(self._problem.read(snapshot, retry_at))
        begun = self._planner.listed is not None or self._pending is not None
        if due and not begun and self._speeds.rates != snapshot.rates:
            if not self._budget.allows(len(self._members)):
                return
            # What was measured meanwhile counts from this round on.
            self._speeds = self._eligibility.speeds = Speeds(snapshot.rates)
            for member in self._members.values():
                self._eligibility.find_kinds(member)
                self._give_digest(member.id, self._digest_of(member))
        if begun or not self._digests:
            return  # a round that has begun comes first
        found = self._wanted(snapshot, due)
        if self._problem.wants(self._now, found) and self._budget.allows(len(self._digests)):
            self._adopt(self._problem.ask(snapshot, found, retry_at, lambda: self._stated(snapshot, found)))

    def _stated(self, snapshot: Snapshot, wanted: str) -> Given:
        pairs, counted, table = self._find_pairs(snapshot), self._counted(), self._in_force
        kinds: set[str] = set()
        if self._settings.placement_sensitive:
            kinds = {kind for member in counted for kind in member.types if is_scattered(kind)}
        return make_given(snapshot, counted, self._workers, self._terms, pairs, table, sorted(kinds), wanted)

    def _wanted(self, snapshot: Snapshot, due: bool) -> str:
        """A digest of all that is to be allocated. Pairs are looked for when jobs come or go, and when a
        round begins."""
        jobs = f"{self._digest:016x}"
        if self._pairs and (due or self._memory.paired[0] != jobs):
            pairs = [(pair.jobs, sorted(pair.throughput.items())) for pair in self._find_pairs(snapshot)]
            self._memory.paired = (jobs, f"{digest(pairs):016x}")
        return " ".join(self._memory.paired) if self._pairs else jobs

    def _find_pairs(self, snapshot: Snapshot) -> tuple[Pair, ...]:
        return find_pairs(snapshot, self._counted(), self._speeds) if self._pairs else ()

    def _counted(self) -> list[Member]:
        """Those that an allocation counts."""
        return [self._members[job_id] for job_id in sorted(self._digests)]

    def _adopt(self, table: FractionTable | None) -> None:
        """Take over an allocation, if there is one. The time that jobs received is counted anew, if not for
        long enough."""
        if table is None:
            return
        last, now = self._memory.reset_at, self._now
        if last is None or now - last >= self._settings.reset_seconds - TINY:
            self._budget.spend(len(self._members))
            due = self._in_force.due(0.0 if last is None else now - last, now)
            for member in self._members.values():
                member.reset(due(member.id), now)
            self._in_force.reset(now)
            self._memory.reset_at, self._renewed = now, self._members.keys()
        self.changed |= self._in_force.take(table, now, self._members)
        kinds = any(map(is_scattered, table.types))
        for job_id in self._members if kinds else self._in_force.partners.keys() & self._members.keys():
            self._members[job_id].open(self._in_force.of(job_id), now)
            self.changed.add(job_id)
        self._planner.listed = None  # they are to be put in order anew
        self._ready = True

    def _fall_back(self) -> None:
        """Jobs that no allocation has counted get an equal part."""
        absent = [m.id for m in self._counted() if not self._in_force.counts(m.id)]
        if absent:
            parts, known = equal_share(self._counted(), self._workers), self._in_force.types
            types = (*known, *(name for name in self._workers if name not in known))
            table = tabulated({(job_id,): parts[job_id] for job_id in absent}, types)
            self.changed |= self._in_force.take(table, self._now, self._members, counted=False)

    # -- deciding -------------------------------------------------------------------------------------

    def decide(self, snapshot: Snapshot, draft: Draft) -> Mapping[JobId, Placement] | None:
        self._budget, self._planner.sharing = draft.budget, SharingRules(snapshot, draft)
        self._budget.spend(self._touched)
        self._allocate(snapshot)
        self.problems, self.refused = self._problem.problems, self._problem.refused
        return self._decide(draft)

    def _decide(self, draft: Draft) -> Mapping[JobId, Placement] | None:
        """Changes the draft. Returns what is to be said of it besides: it was laid out by a plan before."""
        if not self._members:
            self._memory.due, self._pending = None, None
            return {}
        due, late = self._memory.due, self._settings.round_seconds + FIRST_PATIENCE_SECONDS
        if due is None or self._now > due + late:  # there was no job, or no controller for long
            due = self._memory.due = self._now
        if self._now >= due - TINY:
            waits = self._problem.under_way and self._now < self._patient_until() - TINY
            if waits and self._pending is None:
                return {}
            return self._begin_round(draft)
        allocating = self._problem.under_way or self._budget.more
        if self._ready or (self._kept_waiting and not allocating):
            self._kept_waiting = allocating
            self.changed |= self._planner.go_on(draft, self._now, allocating=allocating)
            self._ready = self._planner.unfinished
            self._budget.more |= self._ready
        return {}

    def _begin_round(self, draft: Draft) -> Mapping[JobId, Placement] | None:
        """List all jobs, choose among them and lay out, and say it: with as many plans as that needs."""
        assert self._memory.due is not None
        most = max(1, self._budget.left // CHANGE)
        if self._pending is None:
            if self._planner.listed is None:
                if not self._budget.allows(len(self._members)):
                    return {}
                self._fall_back()
                self._planner.list_all(self._now)
            if not self._budget.allows(len(self._members)):
                return {}
            self._planner.begin_round(draft, self._now)
            self._pending = PendingLayout(draft, self._pools.gpus)
            self._ready = self._planner.unfinished
            most = len(self._pending)  # this plan changes the draft: it says all of that, or nothing
        if not self._budget.allows(most * CHANGE):
            return None
        said = self._pending.say(self._members, most)
        self._budget.more |= bool(self._pending)
        if not self._pending:
            self._all_is_said()
        return said

    def _all_is_said(self) -> None:
        """The round has begun."""
        assert self._memory.due is not None
        self._pending = None
        self.changed |= self._planner.settled
        self._planner.settled.clear()
        self.changed.update(member.id for member in self._members.values() if member.assigned)
        length = self._settings.round_seconds
        self._memory.due += length * (math.floor((self._now - self._memory.due + TINY) / length) + 1)
        # Jobs that came since it was laid out are looked at with the next plan.
        self._budget.more |= self._ready

    def _patient_until(self) -> float:
        """A round that is due waits so long for the allocation."""
        assert self._memory.due is not None
        allocated = any(map(self._in_force.counts, self._members))
        return self._problem.patient_until(self._memory.due, allocated=allocated)

    def wake(self) -> float:
        if self._memory.due is None:
            return math.inf
        if self._now >= self._memory.due - TINY:
            return self._patient_until()
        return self._memory.due

    def to_store(self, row: Row, to: Placement) -> bool:
        """From host memory it could go on with its type only: what it is allocated would depend on that."""
        return bool(row.job.placement.gpus) and not to.gpus and len(self._members[row.id].types) > 1

    # -- words ----------------------------------------------------------------------------------------

    def starts(self, row: Row) -> Why:
        return Why(Reason.ITS_TURN, words.starts(self._members[row.id], self._in_force))

    def stops(self, row: Row) -> Why:
        return words.stops(self._members[row.id], self._in_force)

    def stays(self, row: Row, to: Placement) -> Why | None:
        other = self._pairs and to.shares_with != row.job.placement.shares_with
        return Why(Reason.SHARES_GPUS, words.shares(self._members[row.id], self._in_force)) if other else None

    def waits(self, row: Row) -> Why:
        member = self._members[row.id]
        return (None if member.types else self._pools.why_nowhere(row.job)) or words.waits(
            member, self._in_force
        )
