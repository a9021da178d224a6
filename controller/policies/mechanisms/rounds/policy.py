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
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from controller.model import NOWHERE, Job, JobId, Memory, Note, Placement, Plan, Snapshot, StateAt, Target
from controller.policies.allocations.allocation import Fractions, Given, Pair
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.rounds import words
from controller.policies.mechanisms.rounds.choosing import Ordering
from controller.policies.mechanisms.rounds.deciding import Deciding
from controller.policies.mechanisms.rounds.given import UNPRICED, Pricing, equal_share, make_given
from controller.policies.mechanisms.rounds.member import ALONE, NOTE_FORMAT, Member, by_job
from controller.policies.mechanisms.rounds.pairs import Pairing, Sharing, digest, with_partners
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.rounds.solving import FIRST_PATIENCE_SECONDS, Solving, Stated
from controller.policies.mechanisms.rounds.speeds import Speeds
from controller.policies.mechanisms.row import ASIDE, FIXED, RUNNING, WAITING, Standing
from controller.policies.mechanisms.timers import TINY, remembered_time
from controller.policies.moves.move import Move
from controller.policies.moves.part import part
from controller.policies.placement.draft import Draft, hold


class Rounds:
    """An allocation and moves, composed into a policy."""

    _estimates = True
    """Rates of pairs that are estimated count until they are measured."""

    def __init__(
        self,
        allocation: Stated,
        settings: RoundSettings,
        *,
        name: str = "allocation",
        moves: Sequence[Move] = (),
        ordering: Ordering | None = None,
        pricing: Pricing = UNPRICED,
        pairs: bool = False,
    ) -> None:
        """
        Args:
            name: of the problems that it states.
            pairs: two jobs may be allocated the same GPUs at the same time.
        """
        self._pricing, self._pairing = pricing, Pairing(pairs)
        self._settings, self._moves, self._ordering = settings, tuple(moves), ordering
        self._ready = True
        """Something changed since the last decision."""
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
        self._deciding.sharing = self._look(snapshot)
        self._take_over(snapshot, touched, notes)
        self._ready = self._ready or bool(touched) or bool(changed.nodes)
        self._allocate(snapshot)
        draft = Draft(self._pools, self._placements, self._moves_remember)
        self._decide(draft)
        mark = draft.mark()
        if self._sharing:
            self._part(snapshot, draft, with_partners(snapshot, touched | draft.put_since()) & self._sharing)
        for move in self._moves:
            move.propose(snapshot, draft)
        moves_learned = draft.remembered != self._moves_remember
        self._moves_remember = draft.remembered
        targets = {job_id: self._target(job_id, to) for job_id, to in draft.changes().items()}
        return Plan(
            targets,
            {**self._explained(targets), **draft.said},
            Memory(self._common_changes(moves_learned), self._note_changes(notes)),
            # What a move freed is for the mechanism.
            self._now if draft.freed_since(mark) else max(self._now, min(self._wake(), draft.wake_at)),
            tuple(draft.moved),
            self._solving.problems,
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
            self._ordering,
            self._look(snapshot),
            pairs=self._pairing.on,
        )
        self._placements: dict[JobId, Placement] = {}
        """What jobs have as far as others are concerned."""
        self._sharing: set[JobId] = set()
        self._digests: dict[JobId, int] = {}
        """Of what an allocation is given of each job."""
        self._digest = digest(sorted(self._workers.items()))
        """Of all of them, and of the GPUs."""
        self._speeds = Speeds(snapshot.rates, self._estimates)
        """As the digests have them."""
        self._recalled = dict(memory.jobs)
        """Notes of jobs that were not seen yet."""
        self._changed: set[JobId] = set()
        """Jobs whose note or reason may be another one."""
        self._off_gpus: set[JobId] = set()
        """Jobs whose last reason is one of a job off its GPUs."""
        self._ready = True
        common = memory.common.get("rounds")
        self._common: Mapping[str, Any] = common if isinstance(common, Mapping) else {}
        self._due = remembered_time(self._common.get("due"))
        self._reset_at = remembered_time(self._common.get("reset_at"))
        self._bound = self._common.get("bound", 0)
        """Jobs that stay on a type because Slurm has bound them there, as of the last round."""
        self._pairing.reset(self._common)
        self._solving.reset(self._common)
        moves = memory.common.get("moves")
        self._moves_remember = moves if isinstance(moves, Mapping) else {}

    def _remembered(self) -> Memory:
        notes = {job_id: member.note() for job_id, member in self._members.items()}
        return Memory({"rounds": self._common, "moves": self._moves_remember}, notes)

    def _common_changes(self, moves_learned: bool) -> Mapping[str, Any]:
        before, self._common = self._common, {**self._solving.common(), **self._own_common()}
        changes: dict[str, Any] = {"rounds": self._common} if self._common != before else {}
        return {**changes, "moves": self._moves_remember} if moves_learned else changes

    def _own_common(self) -> dict[str, Any]:
        """What is remembered beyond the jobs and the problem under way."""
        own = {"due": self._due, "reset_at": self._reset_at, "bound": self._bound}
        return {**own, **self._pairing.common()}

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
            member.standing = self._standing(member.job)
            member.hosted = self._pools.type_of(member.job.placement.allocation or member.job.promised)
            member.types = self._types(member)
            member.bound = self._returns(member)
            self._changed.add(job_id)
            self._give_digest(job_id, self._digest_of(member))

    def _forget(self, job_id: JobId) -> None:
        self._hold(job_id, NOWHERE)
        self._members.pop(job_id, None)
        self._sharing.discard(job_id)
        self._off_gpus.discard(job_id)
        self._give_digest(job_id, 0)

    def _hold(self, job_id: JobId, placement: Placement) -> None:
        if self._placements.get(job_id, NOWHERE) != placement:
            hold(self._pools, self._placements, job_id, placement)

    def _standing(self, job: Job) -> Standing:
        if job.leaving:
            return ASIDE
        if not job.placement.gpus:
            return WAITING if job.may_start else ASIDE
        guests = [self._members[i].job for i in job.placement.shares_with if i in self._members]
        # A guest that no round has chosen comes and goes with its host.
        guest = not self._pairing.on and self._pools.is_guest(job.id, job.placement)
        fixed = guest or self._pools.only_closed(job)
        return RUNNING if not fixed and all(j.may_stop for j in (job, *guests)) else FIXED

    def _types(self, member: Member) -> tuple[str, ...]:
        """Where the job may run: a job that Slurm has bound leaves its type by way of a checkpoint only."""
        return (member.hosted,) if self._stays(member.job) else self._pools.accepting(member.job)

    def _stays(self, job: Job) -> bool:
        """Whether it cannot leave the type where Slurm has bound it."""
        return bool(job.placement.allocation) and not (self._settings.change_types and job.starts_anywhere)

    def _returns(self, member: Member) -> bool:
        """Whether it goes on where Slurm has bound it once it is off its GPUs (`_target`)."""
        job = member.job
        suspended = job.has_store and len(member.types) == 1
        return self._stays(job) or (bool(job.placement.allocation) and suspended)

    def _wants(self, member: Member) -> bool:
        """Whether an allocation counts the job."""
        job = member.job
        if self._stays(job) and self._pools.only_closed(job):
            return False  # it ends where it is
        return member.standing is not ASIDE or job.leaving or job.held_until is not None

    def _digest_of(self, member: Member) -> int:
        if not self._wants(member):
            return 0
        job, rates = member.job, self._speeds.alone(member)
        return digest([NOTE_FORMAT, job.id, job.gpus, job.request.weight, job.account, *rates.items()])

    def _give_digest(self, job_id: JobId, new: int) -> None:
        self._digest ^= self._digests.pop(job_id, 0) ^ new
        if new:
            self._digests[job_id] = new

    # -- the allocation -------------------------------------------------------------------------------

    def _allocate(self, snapshot: Snapshot) -> None:
        due = self._due is not None and self._now >= self._due - TINY
        if due and not self._speeds.same(snapshot.rates):
            # What was measured meanwhile counts from this round on.
            self._speeds = Speeds(snapshot.rates, self._estimates)
            for member in self._members.values():
                self._give_digest(member.id, self._digest_of(member))
        if not self._digests:
            self._solving.problems = {}
            return
        fractions = self._solving.advance(
            snapshot,
            self._pairing.wanted(f"{self._digest:016x}", due, lambda: self._find_pairs(snapshot)),
            self._now + self._settings.round_seconds,
            lambda: self._stated(snapshot),
        )
        if fractions is not None:
            self._adopt(fractions)

    def _stated(self, snapshot: Snapshot) -> Given:
        pairs = self._find_pairs(snapshot)
        return make_given(snapshot, self._counted(), self._speeds, self._workers, self._pricing, pairs)

    def _find_pairs(self, snapshot: Snapshot) -> tuple[Pair, ...]:
        return self._pairing.find(snapshot, self._counted(), self._speeds)

    def _counted(self) -> list[Member]:
        """Those that an allocation counts."""
        return [self._members[job_id] for job_id in sorted(self._digests)]

    def _adopt(self, fractions: Fractions) -> None:
        """Take over an allocation. The time that jobs received is counted anew, if not for long enough."""
        last, now = self._reset_at, self._now
        reset = last is None or now - last >= self._settings.reset_seconds - TINY
        rows = by_job(fractions)
        for member in self._members.values():
            if reset:
                member.reset(now - (now if last is None else last), now)
            else:
                member.accrue(now)
            if (member.id,) in fractions:
                member.take(rows[member.id], now)
        if reset:
            self._reset_at = now
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

    # -- sharing --------------------------------------------------------------------------------------

    def _look(self, snapshot: Snapshot) -> Sharing:
        """Who may share GPUs now."""
        return Sharing(snapshot)

    def _part(self, snapshot: Snapshot, draft: Draft, sharing: Collection[JobId]) -> None:
        """Separate those of these that may not share GPUs."""
        part(snapshot, draft, sharing)

    # -- deciding -------------------------------------------------------------------------------------

    def _decide(self, draft: Draft) -> None:
        if not self._members:
            self._due = None
            return
        if self._due is None or self._now > self._due + self._settings.round_seconds + FIRST_PATIENCE_SECONDS:
            # There was no job, or no controller for long.
            self._due = self._now
        if self._now >= self._due - TINY:
            if self._solving.under_way and self._now < self._patient_until() - TINY:
                return
            self._fall_back()
            self._bound = sum(map(self._is_bound, self._members.values()))
            self._deciding.begin_round(draft, self._now)
            self._changed.update(self._members)
            length = self._settings.round_seconds
            self._due += length * (math.floor((self._now - self._due + TINY) / length) + 1)
        elif self._ready:
            self._changed |= self._deciding.go_on(draft, self._now, allocating=self._solving.under_way)
        self._ready = False

    def _patient_until(self) -> float:
        """A round that is due waits so long for the allocation."""
        assert self._due is not None
        allocated = any(member.allocated for member in self._members.values())
        return self._solving.patient_until(self._due, allocated=allocated)

    def _is_bound(self, member: Member) -> bool:
        return self._stays(member.job) and bool(set(self._pools.accepting(member.job)) - {member.hosted})

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

    # -- words ----------------------------------------------------------------------------------------

    def _explained(self, targets: Mapping[JobId, Target]) -> dict[JobId, str]:
        """Why the jobs that changed are where they are, or are to be."""
        found: dict[JobId, str] = {}
        for job_id in (self._changed | targets.keys()) & self._members.keys():
            said = self._explain(self._members[job_id], targets.get(job_id))
            if said:
                found[job_id] = said
        return found

    def _explain(self, member: Member, target: Target | None) -> str:
        job = member.job
        if target is not None and target.placement.gpus:
            self._off_gpus.discard(job.id)
            if not job.placement.gpus:
                return words.starts(member)
            shares = self._pairing.on and target.placement.shares_with != job.placement.shares_with
            return words.shares(member) if shares else ""
        if target is not None:
            self._off_gpus.add(job.id)
            return words.stops(member)
        if member.standing is WAITING:
            self._off_gpus.add(job.id)
            return words.waits(member, "" if member.types else self._pools.why_nowhere(job))
        if job.switching or job.leaving:
            return ""
        if member.standing is ASIDE:
            self._off_gpus.add(job.id)
            return sentences.aside(job)
        if job.id in self._off_gpus:
            self._off_gpus.discard(job.id)
            return sentences.still_on(job)
        return ""
