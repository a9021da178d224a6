# SPDX-License-Identifier: GPL-2.0-or-later
"""Who runs in a round, and what is done with GPUs that become free within it."""

from __future__ import annotations

from collections.abc import Mapping

from controller.model import NOWHERE, JobId, Placement
from controller.policies.mechanisms.rounds.choosing import (
    LEAST_FRACTION,
    Choice,
    GlobalList,
    Ordering,
    choose,
)
from controller.policies.mechanisms.rounds.laying import Refused, lay_out, place
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING
from controller.policies.placement.draft import Draft

_TRIES = 16
"""How often a round is chosen anew because jobs found no place."""


class Deciding:
    """Puts placements into the draft, and into each member the type it is assigned."""

    def __init__(
        self,
        pools: Pools,
        members: Mapping[JobId, Member],
        settings: RoundSettings,
        ordering: Ordering | None,
    ) -> None:
        """`members`: all jobs; it follows what is observed."""
        self._pools, self._members, self._settings = pools, members, settings
        self._ordering = ordering or GlobalList()

    def begin_round(self, draft: Draft, now: float) -> None:
        """Choose anew among all jobs. Those that are not chosen, or for another type, stop."""
        for member in self._members.values():
            member.settle_extra(now)
            if member.standing is FIXED:
                member.assigned = member.hosted
        self._let_drain(draft)
        self._let_arrive(draft, now)
        candidates = [
            m
            for m in self._members.values()
            if m.standing is RUNNING or (m.standing is WAITING and not draft.of(m.id).gpus)
        ]
        running = [m for m in candidates if m.standing is RUNNING]
        free = self._pools.free()
        for member in running:
            free[member.hosted] = free.get(member.hosted, 0) + self._open_gpus(member)
        order = self._ordering.order(candidates, free, now, self._settings.round_seconds)
        chosen = self._lay_out(draft, candidates, running, order, free)
        for job_id, choice in chosen.items():
            self._assign(self._members[job_id], choice, now)

    def go_on(self, draft: Draft, now: float, *, allocating: bool) -> set[JobId]:
        """Start those whose GPUs have become free, and others on what is left. Returns jobs that are assigned
        something else than before. `allocating`: an allocation is under way, and jobs that it will count for
        the first time wait for it."""
        self._let_drain(draft)
        arrived = self._let_arrive(draft, now)
        waiting = [m for m in self._members.values() if m.standing is WAITING and not draft.of(m.id).gpus]
        free = self._pools.free()
        for member in self._members.values():
            if not member.assigned or draft.of(member.id).allocation:
                continue
            gpus = self._pools.find(member.job, member.assigned) if member.standing is WAITING else None
            if gpus is not None:
                place(draft, member, gpus)
            free[member.assigned] = free.get(member.assigned, 0) - member.job.gpus
        if not self._settings.refill or max(free.values(), default=0) <= 0:
            return arrived
        idle = [
            m
            for m in waiting
            if not m.assigned and not draft.of(m.id).gpus and (m.allocated or not allocating)
        ]
        order = self._ordering.order(idle, free, now, self._settings.round_seconds)
        chosen = self._lay_out(draft, idle, [], order, free)
        for job_id, choice in chosen.items():
            self._assign(self._members[job_id], choice, now)
        return arrived | set(chosen)

    def _lay_out(
        self,
        draft: Draft,
        candidates: list[Member],
        running: list[Member],
        order: list[Choice],
        free: Mapping[str, int],
    ) -> dict[JobId, Choice]:
        """Jobs with the types that they get."""
        gpus = {m.id: m.job.gpus for m in candidates}
        refused: Refused = set()
        mark, chosen = draft.mark(), dict[JobId, Choice]()
        for tries_left in reversed(range(_TRIES)):
            chosen = choose(order, gpus, free, refused)
            for member in running:
                if member.id not in chosen or chosen[member.id].gpu_type != member.hosted:
                    draft.put(member.id, NOWHERE)
            new = lay_out(draft, self._pools, self._members, chosen)
            if not new or not tries_left:
                chosen = {i: c for i, c in chosen.items() if (i, c.gpu_type) not in new}
                break
            refused |= new
            draft.rollback(mark)
        return chosen

    def _assign(self, member: Member, choice: Choice, now: float) -> None:
        member.assigned = choice.gpu_type
        member.extra_from = member.seconds(choice.gpu_type, now) if choice.extra else None

    def _open_gpus(self, member: Member) -> int:
        return sum(gpu.node not in self._pools.closed for gpu in member.job.placement.gpus)

    def _let_arrive(self, draft: Draft, now: float) -> set[JobId]:
        """Jobs that a move has sent elsewhere start where their GPUs are promised to them. Returns those that
        had no type in this round."""
        arrived: set[JobId] = set()
        for member in self._members.values():
            had = draft.of(member.id)
            if member.standing is not WAITING or had.gpus or not had.allocation:
                continue
            draft.put(member.id, Placement(had.allocation, had.allocation))
            if member.assigned != member.hosted:
                extra = member.fraction(member.hosted) < LEAST_FRACTION
                self._assign(member, Choice(member.id, member.hosted, extra), now)
                arrived.add(member.id)
        return arrived

    def _let_drain(self, draft: Draft) -> None:
        """A node that is being drained gets empty when the jobs bound to it have ended: those that are off
        their GPUs go on there when all of them are idle."""
        if not self._pools.closed:
            return
        for member in sorted(self._members.values(), key=lambda m: (m.job.submit_time, m.id)):
            if member.standing is WAITING and self._pools.partly_closed(member.job):
                gpus = self._pools.find(member.job, member.hosted)
                if gpus is not None and not draft.of(member.id).gpus:
                    place(draft, member, gpus)
