# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds: an allocation says which fraction of the time each job is to run on each GPU type, and round by
round those run that are furthest behind theirs.

A round begins when the one before is over. Jobs that are chosen again for their type keep their GPUs: they
are not stopped. In between, GPUs that become free are given to jobs that wait. The allocation is computed
anew when jobs or GPUs come or go; until it is there, the last one goes on.

The plan depends on the snapshot and the memory alone. What is kept between calls only saves work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.model import NOWHERE, JobId, Memory, Note, Placement, Plan, Snapshot, StateAt, Target
from controller.model.timers import TINY
from controller.policies.allocations.allocation import Fractions, Given, Pair
from controller.policies.mechanisms.rounds.deciding import Deciding
from controller.policies.mechanisms.rounds.effort import Effort
from controller.policies.mechanisms.rounds.given import NO_TERMS, Terms, equal_share, make_given
from controller.policies.mechanisms.rounds.laid import Laid
from controller.policies.mechanisms.rounds.member import ALONE, NOTE_FORMAT, Member, by_job
from controller.policies.mechanisms.rounds.observing import Observing
from controller.policies.mechanisms.rounds.pairs import Pairing, Sharing, digest
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.rounds.solving import FIRST_PATIENCE_SECONDS, Solving, Stated
from controller.policies.mechanisms.rounds.speeds import Speeds
from controller.policies.mechanisms.rounds.telling import Telling
from controller.policies.moves.move import Move
from controller.policies.moves.part import part, with_partners
from controller.policies.placement.draft import Draft, hold
from controller.policies.recalled import mapping, remembered_time


class Rounds:
    """An allocation and moves, composed into a policy."""

    def __init__(
        self,
        allocation: Stated,
        settings: RoundSettings,
        *,
        name: str = "allocation",
        moves: Sequence[Move] = (),
        terms: Terms = NO_TERMS,
        pairs: bool = False,
    ) -> None:
        """
        Args:
            name: of the problems that it states.
            pairs: two jobs may be allocated the same GPUs at the same time.
        """
        self._terms, self._pairing = terms, Pairing(pairs)
        self._settings, self._moves = settings, tuple(moves)
        self._ready = True
        """Something changed since the last decision."""
        self._kept_waiting = False
        """At the last decision jobs waited for an allocation. It may fail."""
        self._solving = Solving(allocation, name)
        self._moves_remember: Mapping[str, Any] = {}
        """What moves remember, by a name of theirs."""
        self._reset(Snapshot(time=0.0, nodes={}, jobs={}), Memory())

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from now on. `memory` is read only where everything changed."""
        self._now, changed = snapshot.time, snapshot.changed
        known = not changed.everything and self._pools.same(snapshot.nodes, changed.nodes)
        if not known:
            self._reset(snapshot, memory if changed.everything else self._remembered())
        notes: dict[JobId, Note] = {}
        touched = set(changed.jobs if known else {*snapshot.jobs, *self._recalled})
        self._deciding.sharing = Sharing(snapshot)
        self._effort = Effort()
        self._effort.spend(len(touched))
        self._take_over(snapshot, touched, notes)
        self._ready = self._ready or bool(touched) or bool(changed.nodes)
        self._allocate(snapshot)
        draft = Draft(self._pools, self._placements, self._moves_remember)
        said_now = self._decide(draft)
        mark = draft.mark()
        if self._sharing and self._laid is None:
            put = touched | draft.put_since() | said_now.keys()
            part(snapshot, draft, with_partners(snapshot, put) & self._sharing)
        for move in () if self._effort.put_off else self._moves:
            move.propose(snapshot, draft)
        moves_learned = draft.remembered != self._moves_remember
        self._moves_remember = draft.remembered
        targets = {job_id: self._target(job_id, to) for job_id, to in self._changes(draft, said_now).items()}
        said = {**self._telling.tell(self._changed, targets), **draft.said}
        # What a move freed is for the mechanism.
        goes_on = draft.freed_since(mark) or self._effort.put_off or self._telling.behind
        return Plan(
            targets,
            said,
            Memory(self._common_changes(moves_learned), self._note_changes(notes)),
            self._now if goes_on else max(self._now, min(self._wake(), draft.wake_at)),
            tuple(draft.moved),
            self._solving.problems,
            self._solving.refused,
        )

    # -- memory ---------------------------------------------------------------------------------------

    def _reset(self, snapshot: Snapshot, memory: Memory) -> None:
        self._members: dict[JobId, Member] = {}
        self._pools = Pools(snapshot.nodes, self._members)
        self._workers = self._pools.workers()
        self._deciding = Deciding(
            self._pools,
            self._members,
            self._settings,
            Sharing(snapshot),
            pairs=self._pairing.on,
        )
        self._laid: Laid | None = None
        """Of a round that begins, and not said yet."""
        self._placements: dict[JobId, Placement] = {}
        """What jobs have as far as others are concerned."""
        self._sharing: set[JobId] = set()
        self._digests: dict[JobId, int] = {}
        """Of what an allocation is given of each job."""
        self._digested: dict[JobId, tuple[object, int]] = {}
        """Of what they were made last."""
        self._digest = digest(sorted(self._workers.items()))
        """Of all of them, and of the GPUs."""
        self._speeds = Speeds(snapshot.rates)
        """As the digests have them."""
        self._observing = Observing(
            self._settings, self._pools, self._members, self._speeds, pairs=self._pairing.on
        )
        self._recalled = dict(memory.jobs)
        """Notes of jobs that were not seen yet."""
        self._changed: set[JobId] = set()
        """Jobs whose note or reason may be another one."""
        self._telling = Telling(self._pools, self._members, pairs=self._pairing.on)
        self._ready = True
        self._common = mapping(memory.common.get("rounds"))
        self._due = remembered_time(self._common.get("due"))
        self._reset_at = remembered_time(self._common.get("reset_at"))
        self._bound = self._common.get("bound", 0)
        """Jobs that stay on a type because Slurm has bound them there, as of the last round."""
        self._pairing.reset(self._common)
        self._solving.reset(self._common)
        self._moves_remember = mapping(memory.common.get("moves"))

    def _remembered(self) -> Memory:
        notes = {job_id: member.note() for job_id, member in self._members.items()}
        return Memory({"rounds": self._common, "moves": self._moves_remember}, notes)

    def _common_changes(self, moves_learned: bool) -> Mapping[str, Any]:
        before, self._common = (
            self._common,
            {
                **self._solving.common(),
                **self._pairing.common(),
                "due": self._due,
                "reset_at": self._reset_at,
                "bound": self._bound,
            },
        )
        changes: dict[str, Any] = {"rounds": self._common} if self._common != before else {}
        return {**changes, "moves": self._moves_remember} if moves_learned else changes

    def _note_changes(self, notes: dict[JobId, Note]) -> Mapping[JobId, Note]:
        for job_id in self._changed & self._members.keys():
            member = self._members[job_id]
            note = member.note()
            if note != member.noted:
                member.noted = notes[job_id] = note
        self._changed.clear()
        return notes

    # -- taking over what was observed ----------------------------------------------------------------

    def _take_over(self, snapshot: Snapshot, ids: Iterable[JobId], notes: dict[JobId, Note]) -> None:
        found = with_partners(snapshot, ids)
        for job_id in sorted(found):
            job, member = snapshot.jobs.get(job_id), self._members.get(job_id)
            note = self._recalled.pop(job_id, None)
            if job is None:
                if member is not None or note is not None:
                    notes[job_id] = None
                self._forget(job_id)
                continue
            if member is None:
                member = self._members[job_id] = Member(job)
                member.recall(note)
            member.job, member.usage = job, snapshot.usage_of(job_id)
            self._hold(job_id, self._pools.held(job))
            (self._sharing.add if job.placement.shares_with else self._sharing.discard)(job_id)
        for member in self._members.values() if self._pairing.on else ():
            if member.beside != ALONE and member.beside not in self._members:
                member.lose_partner(self._now)
                self._changed.add(member.id)
        for job_id in found & self._members.keys():
            member = self._members[job_id]
            member.standing = self._observing.standing(member.job)
            self._observing.find_kinds(member)
            self._changed.add(job_id)
            self._give_digest(job_id, self._digest_of(member))

    def _forget(self, job_id: JobId) -> None:
        self._hold(job_id, NOWHERE)
        self._members.pop(job_id, None)
        self._sharing.discard(job_id)
        self._digested.pop(job_id, None)
        self._telling.forget(job_id)
        self._give_digest(job_id, 0)

    def _hold(self, job_id: JobId, placement: Placement) -> None:
        if self._placements.get(job_id, NOWHERE) != placement:
            hold(self._pools, self._placements, job_id, placement)

    def _digest_of(self, member: Member) -> int:
        if not self._observing.wants(member):
            return 0
        job, member.rates = member.job, self._speeds.alone(member)
        request = job.request
        own = (job.id, job.gpus, request.weight, job.account, job.deadline_at, request.duration_seconds)
        content = (NOTE_FORMAT, *own, member.rates)
        known, found = self._digested.get(job.id, (None, 0))
        if content != known:
            found = digest([*content[:-1], *member.rates.items()])
            self._digested[job.id] = content, found
        return found

    def _give_digest(self, job_id: JobId, new: int) -> None:
        self._digest ^= self._digests.pop(job_id, 0) ^ new
        if new:
            self._digests[job_id] = new

    # -- the allocation -------------------------------------------------------------------------------

    def _allocate(self, snapshot: Snapshot) -> None:
        due = self._due is not None and self._now >= self._due - TINY
        retry_at = self._now + self._settings.round_seconds
        # In every plan: a failure is announced once, also when no job is left to be allocated.
        self._adopt(self._solving.read(snapshot, retry_at))
        begun = self._deciding.listed or self._laid is not None
        if due and not begun and not self._speeds.same(snapshot.rates):
            if not self._effort.allows(len(self._members)):
                return
            # What was measured meanwhile counts from this round on.
            self._speeds = self._observing.speeds = Speeds(snapshot.rates)
            for member in self._members.values():
                self._observing.find_kinds(member)
                self._give_digest(member.id, self._digest_of(member))
        if not self._digests:
            return
        if self._deciding.listed or self._laid is not None:
            return  # the round begins first
        found = self._pairing.wanted(f"{self._digest:016x}", due, lambda: self._find_pairs(snapshot))
        if self._solving.wants(self._now, found) and self._effort.allows(len(self._digests)):
            self._adopt(self._solving.ask(snapshot, found, retry_at, lambda: self._stated(snapshot)))

    def _stated(self, snapshot: Snapshot) -> Given:
        pairs = self._find_pairs(snapshot)
        return make_given(snapshot, self._counted(), self._workers, self._terms, pairs)

    def _find_pairs(self, snapshot: Snapshot) -> tuple[Pair, ...]:
        return self._pairing.find(snapshot, self._counted(), self._speeds)

    def _counted(self) -> list[Member]:
        """Those that an allocation counts."""
        return [self._members[job_id] for job_id in sorted(self._digests)]

    def _adopt(self, fractions: Fractions | None) -> None:
        """Take over an allocation, if there is one. The time that jobs received is counted anew, if not for
        long enough."""
        if fractions is None:
            return
        self._effort.spend(len(self._members))
        last, now = self._reset_at, self._now
        reset = last is None or now - last >= self._settings.reset_seconds - TINY
        rows = by_job(fractions)
        for member in self._members.values():
            if reset:
                member.reset(now - (now if last is None else last), now)
            else:
                member.accrue(now)
            if (member.id,) in fractions:
                member.take(rows.get(member.id, {}), now)
        if reset:
            self._reset_at = now
        self._deciding.unlist()
        self._changed.update(self._members)
        self._ready = True

    def _fall_back(self) -> None:
        """Jobs that no allocation has counted get an equal part."""
        absent = [m for m in self._counted() if not m.allocated]
        if absent:
            parts = equal_share(self._counted(), self._workers)
            for member in absent:
                for gpu_type, fraction in parts[member.id].items():
                    member.account(gpu_type).fraction = fraction
                member.since = self._now
                self._changed.add(member.id)

    # -- deciding -------------------------------------------------------------------------------------

    def _decide(self, draft: Draft) -> Mapping[JobId, Placement]:
        """Changes the draft. Returns what is to be said of it besides: it was laid out by a plan before."""
        if not self._members:
            self._due, self._laid = None, None
            return {}
        if self._due is None or self._now > self._due + self._settings.round_seconds + FIRST_PATIENCE_SECONDS:
            # There was no job, or no controller for long.
            self._due = self._now
        if self._now >= self._due - TINY:
            if self._solving.under_way and self._now < self._patient_until() - TINY:
                return {}
            return self._begin_round(draft)
        allocating = self._solving.under_way or self._effort.put_off
        if self._ready or (self._kept_waiting and not allocating):
            self._kept_waiting = allocating
            self._changed |= self._deciding.go_on(draft, self._now, allocating=allocating)
            self._ready = self._deciding.unfinished
            self._effort.put_off = self._effort.put_off or self._ready
        return {}

    def _begin_round(self, draft: Draft) -> Mapping[JobId, Placement]:
        """List all jobs, choose among them and lay out, and say it: with as many plans as that needs."""
        assert self._due is not None
        if self._laid is None:
            if not self._deciding.listed:
                if not self._effort.allows(len(self._members)):
                    return {}
                self._fall_back()
                self._bound = sum(map(self._observing.misses_types, self._members.values()))
                self._deciding.list_all(self._now)
            if not self._effort.allows(len(self._members)):
                return {}
            self._deciding.begin_round(draft, self._now)
            self._laid = Laid(draft.changes(), self._members)
            self._ready = self._deciding.unfinished
        if not self._effort.allows(len(self._members)):
            return {}
        laid, self._laid = self._laid, None
        self._changed.update(self._members)
        length = self._settings.round_seconds
        self._due += length * (math.floor((self._now - self._due + TINY) / length) + 1)
        # Jobs that came since it was laid out are looked at with the next plan.
        self._effort.put_off = self._effort.put_off or self._ready
        return laid.say(draft)

    def _changes(self, draft: Draft, said_now: Iterable[JobId]) -> Mapping[JobId, Placement]:
        """What jobs are to have instead of what they have."""
        if self._laid is not None:
            return {}
        laid = {i: to for i in said_now if (to := draft.of(i)) != self._pools.held(self._members[i].job)}
        return {**laid, **draft.changes()}

    def _patient_until(self) -> float:
        """A round that is due waits so long for the allocation."""
        assert self._due is not None
        allocated = any(member.allocated for member in self._members.values())
        return self._solving.patient_until(self._due, allocated=allocated)

    def _wake(self) -> float:
        if self._due is None:
            return math.inf
        if self._now >= self._due - TINY:
            return self._patient_until()
        return self._due

    def _target(self, job_id: JobId, placement: Placement) -> Target:
        member = self._members[job_id]
        had = member.job.placement
        # From host memory it could go on with its type only: what it is allocated would depend on that.
        leaves = bool(had.gpus) and not placement.gpus and len(member.types) > 1
        migrates = bool(had.allocation and placement.gpus) and placement.allocation != had.allocation
        return Target(placement, StateAt.STORE if leaves or migrates else StateAt.HOST)
