# SPDX-License-Identifier: GPL-2.0-or-later
"""From a snapshot to a plan: what all policies have in common.

The frame follows what is observed, puts a plan together, and keeps what is said and remembered. Its mechanism
decides who runs where: `Ordered` serves an order in lanes, `Rounds` an allocation. Moves follow.

The plan depends on the snapshot and the memory alone. What is kept between calls only saves work: tests
compare each plan with one made from nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from controller.model import NOWHERE, JobId, Memory, Placement, Plan, Snapshot, StateAt, Target, Why
from controller.policies import budget
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.mechanism import Mechanism
from controller.policies.mechanisms.row import WAITING, Row
from controller.policies.moves.move import Move
from controller.policies.moves.part import part, with_partners
from controller.policies.placement.draft import Draft
from controller.policies.recalled import mapping


class Frame:
    """A mechanism and moves, composed into a policy."""

    def __init__(self, mechanism: Mechanism, moves: Sequence[Move] = ()) -> None:
        self.mechanism, self._moves = mechanism, tuple(moves)
        self._moves_remember = mapping(None)
        self._reset(Snapshot(time=0.0, nodes={}, jobs={}), Memory())

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from now on. `memory` is read only where everything changed.

        Cost: what changed, and what the mechanism searches; from nothing O(jobs log jobs + GPUs).
        """
        mechanism = self.mechanism
        # 1. Follow what was observed.
        touched = self._touched(snapshot, memory)
        mechanism.begin(snapshot)
        self._follow(snapshot, touched)
        # 2. Decide who runs where, by what changes with time and what was solved meanwhile.
        draft = self._draft.begin(self._moves_remember)
        late = mechanism.decide(snapshot, draft)
        decided = not draft.budget.more
        # 3. Part jobs that may not share their GPUs any more.
        mark = draft.mark()
        if self._sharing and late is not None:
            put = touched | draft.put_since() | late.keys()
            part(snapshot, draft, with_partners(snapshot, put) & self._sharing)
        # 4. Moves follow a decision that is whole, and the moves before them.
        for move in self._moves if decided else ():
            move.propose(snapshot, draft)
            if draft.wake_at <= snapshot.time:
                break
        # 5. What jobs are to have instead of what they have.
        changes: Mapping[JobId, Placement] = {}
        if late is not None:
            placed = {job_id: draft.of(job_id) for job_id in late}
            other = {i: to for i, to in placed.items() if to != mechanism.held(self._rows[i].job)}
            changes = {**other, **draft.changes()}
        mechanism.settle(changes, whole=decided)
        targets = {job_id: self._target(job_id, to) for job_id, to in changes.items()}
        # 6. Say why.
        said = self._say(draft, mechanism.changed, changes)
        # 7. Remember, and plan again in time. What a move freed is for the mechanism.
        at_once = draft.budget.more or bool(self._unsaid) or draft.freed_since(mark)
        wake_at = max(snapshot.time, min(mechanism.wake(), draft.wake_at))
        return Plan(
            targets,
            said,
            Memory(self._learned(draft), mechanism.notes()),
            snapshot.time if at_once else wake_at,
            tuple(draft.moved),
            mechanism.problems,
            mechanism.refused,
        )

    # -- what is observed -----------------------------------------------------------------------------

    def _touched(self, snapshot: Snapshot, memory: Memory) -> set[JobId]:
        """Jobs that are not as they were; all of them where it begins anew."""
        changed = snapshot.changed
        if not changed.everything and self.mechanism.nodes_changed(snapshot, changed):
            return set(changed.jobs)
        if not changed.everything:
            notes = {job_id: row.remembered() for job_id, row in self._rows.items()}
            memory = Memory(self._common, notes)
        self._reset(snapshot, memory)
        return {*snapshot.jobs, *self._recalled}

    def _reset(self, snapshot: Snapshot, memory: Memory) -> None:
        self._rows: dict[JobId, Row] = {}
        self._draft = Draft(self.mechanism)
        self._sharing: set[JobId] = set()
        """Jobs that were seen on GPUs together with others."""
        self._parted: set[JobId] = set()
        """Jobs that were seen to have lost a partner, which is not said yet."""
        self._off_gpus: set[JobId] = set()
        """Jobs whose last reason is one of a job off its GPUs."""
        self._unsaid: dict[JobId, None] = {}
        """Jobs of which something else may be true than what was said last."""
        self._recalled = dict(memory.jobs)
        """Notes of jobs that were not seen yet."""
        self._common = dict(memory.common)
        self._moves_remember = mapping(memory.common.get("moves"))
        self.mechanism.reset(snapshot, self._common, self._rows)

    def _follow(self, snapshot: Snapshot, ids: Iterable[JobId]) -> None:
        touched: list[Row] = []
        for job_id in sorted(with_partners(snapshot, ids)):
            job, row = snapshot.jobs.get(job_id), self._rows.get(job_id)
            note = self._recalled.pop(job_id, None) if row is None else row.note
            usage = snapshot.usage_of(job_id)
            if row is not None:
                self.mechanism.leave(row)
            if job is None:
                self._forget(job_id)
                self.mechanism.ended(job_id, row, note, usage)
                continue
            if row is None:
                row = self._rows[job_id] = self.mechanism.row(job, usage, note)
            elif job.placement.gpus and row.job.placement.shares_with - job.placement.shares_with:
                self._parted.add(job_id)
            row.job, row.usage, row.profile = job, usage, snapshot.profile_of(job_id)
            (self._sharing.add if job.placement.shares_with else self._sharing.discard)(job_id)
            self._draft.hold(job_id, self.mechanism.held(job))
            touched.append(row)
        self.mechanism.follow(touched)

    def _forget(self, job_id: JobId) -> None:
        self._draft.hold(job_id, NOWHERE)
        self._rows.pop(job_id, None)
        self._unsaid.pop(job_id, None)
        for kept in (self._sharing, self._parted, self._off_gpus):
            kept.discard(job_id)

    # -- what is to be different ----------------------------------------------------------------------

    def _target(self, job_id: JobId, placement: Placement) -> Target:
        """Outside of its allocation a job goes on from the store."""
        row = self._rows[job_id]
        had = row.job.placement
        migrates = bool(had.allocation and placement.gpus) and placement.allocation != had.allocation
        stored = migrates or self.mechanism.to_store(row, placement)
        return Target(placement, StateAt.STORE if stored else StateAt.HOST)

    def _learned(self, draft: Draft) -> Mapping[str, Any]:
        """What is to be remembered beyond jobs, where it is news."""
        self._moves_remember = draft.remembered
        now = {**self.mechanism.common(), **({"moves": draft.remembered} if self._moves else {})}
        last, self._common = self._common, now
        return {name: one for name, one in now.items() if one is not last.get(name) and one != last.get(name)}

    # -- what is said ---------------------------------------------------------------------------------

    def _say(
        self, draft: Draft, changed: Collection[JobId], changes: Mapping[JobId, Placement]
    ) -> dict[JobId, str]:
        """What the draft says comes first. Where there is much to say, the next plans say the rest."""
        self._unsaid.update(dict.fromkeys(changed))
        for job_id in draft.said.keys() - changes.keys():
            self._unsaid.pop(job_id, None)
        more = max(0, budget.LOOKS // budget.WORDS - len(changes))
        now = [*changes, *islice((job_id for job_id in self._unsaid if job_id not in changes), more)]
        found: dict[JobId, str] = {}
        for job_id in now:
            self._unsaid.pop(job_id, None)
            row = self._rows.get(job_id)
            if row is not None and (said := self._why(row, changes.get(job_id))):
                found[job_id] = said
        return found | draft.said

    def _why(self, row: Row, to: Placement | None) -> Why | None:
        """Why a job is where it is, or where it is to be. None: nothing is new."""
        job, parted = row.job, row.id in self._parted
        self._parted.discard(row.id)
        if to is not None and to.gpus:
            self._off_gpus.discard(row.id)
            return self.mechanism.stays(row, to) if job.placement.gpus else self.mechanism.starts(row)
        if to is not None and job.placement.gpus:
            self._off_gpus.add(row.id)
            return self.mechanism.stops(row)
        if row.standing is WAITING:
            self._off_gpus.add(row.id)
            return self.mechanism.waits(row)
        why = sentences.unplanned(job, row.standing, self._off_gpus)
        return why or (sentences.PARTED if parted and job.placement.gpus else None)
