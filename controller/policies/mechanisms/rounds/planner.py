# SPDX-License-Identifier: GPL-2.0-or-later
"""Who runs in a round, and what is done with GPUs that become free within it."""

from collections.abc import Collection, Iterable, Mapping

from controller.model import GpuId, JobId
from controller.policies.mechanisms.rounds.in_force import ALONE, InForce
from controller.policies.mechanisms.rounds.kinds import kinds, type_of_kind
from controller.policies.mechanisms.rounds.layout import Layout, find_together, place
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pairs import SharingRules
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.selection import Choice, Selection, ranked
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING, arrival
from controller.policies.mechanisms.settled import let_arrive, let_return
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import held


class RoundPlanner:
    """Puts placements into the draft, and into each member the type it is assigned."""

    def __init__(
        self,
        pools: Pools,
        members: Mapping[JobId, Member],
        in_force: InForce,
        settings: RoundSettings,
        *,
        pairs: bool,
    ) -> None:
        """
        Args:
            members: all jobs; it follows what is observed.
            pairs: jobs that share GPUs do so because a round has chosen them together.
        """
        self._pools, self._members, self._in_force = pools, members, in_force
        self._settings, self._pairs = settings, pairs
        self.sharing: SharingRules
        """Who may share GPUs; anew in each plan."""
        self._waiting: dict[JobId, int] = {}
        """With the GPUs that they take."""
        self._promised: set[JobId] = set()
        """Those of them that may start on GPUs where a move has sent them."""
        self._pending: set[JobId] = set()
        """Jobs that this round gives a type, and that may have no GPUs yet."""
        self.listed: Iterable[Choice] | None = None
        """All jobs, where a round is over and what follows is to be chosen."""
        self.settled: set[JobId] = set()
        """Jobs that had a type in the round that is over, until the next one is said."""
        self.unfinished = False
        """Choices had no place, and others were chosen. What was in their way may have been placed elsewhere
        since: `go_on` may find a place."""

    def see(self, member: Member) -> None:
        """A job is as it was observed."""
        self.forget(member.id)
        if member.standing is WAITING:
            self._waiting[member.id] = member.gpus
            if held(self._pools.gpus, member.job).allocation:
                self._promised.add(member.id)
        if member.assigned:
            self._pending.add(member.id)

    def forget(self, job_id: JobId) -> None:
        """A job is gone."""
        self._waiting.pop(job_id, None)
        self._promised.discard(job_id)
        self._pending.discard(job_id)

    def list_all(self, now: float) -> None:
        """A round is over. Put all jobs in order for the next one."""
        candidates: list[Member] = []
        self._pending.clear()
        for member in self._members.values():
            if member.settle(now):
                self.settled.add(member.id)
            if member.standing in (RUNNING, WAITING):
                candidates.append(member)
        types, length = kinds(self._pools.types), self._settings.round_seconds
        self.listed = ranked(candidates, self._in_force, types, now, length)

    def begin_round(self, draft: Draft, now: float) -> None:
        """Choose among all jobs that are listed. Those that are not chosen, or for another type, stop."""
        assert self.listed is not None
        listed, self.listed = self.listed, None
        for member in self._members.values():
            if member.standing is FIXED:
                others = member.job.placement.shares_with if self._pairs else ()
                member.assign(member.hosted, min(others, default=ALONE), False, now)
        self._let_settled(draft, now)
        candidates = [
            m
            for m in self._members.values()
            if m.standing is RUNNING or (m.standing is WAITING and not draft.of(m.id).gpus)
        ]
        running = [m for m in candidates if m.standing is RUNNING]
        free = self._pools.free()
        for gpu_type, gpus in self._open_by_type(running).items():
            free[gpu_type] = free.get(gpu_type, 0) + len(gpus)
        self._lay_out(draft, candidates, running, listed, free, now)

    def go_on(self, draft: Draft, now: float, *, allocating: bool) -> set[JobId]:
        """Start those whose GPUs have become free, and others on what is left. Returns jobs that are assigned
        something else than before. `allocating`: an allocation is under way, and jobs that it will count for
        the first time wait for it."""
        self.unfinished = False
        arrived = self._let_settled(draft, now)
        free = self._pools.free()
        for member in [self._members[job_id] for job_id in sorted(self._pending)]:
            if draft.of(member.id).allocation:
                self._pending.discard(member.id)
                continue
            partner = self._members.get(member.beside)
            there = partner is not None and bool(draft.of(partner.id).gpus)
            if member.standing is WAITING:
                self._start(draft, member, partner if there else None)
            if not there and (partner is None or member.id < partner.id):
                gpu_type = type_of_kind(member.assigned)
                free[gpu_type] = free.get(gpu_type, 0) - member.gpus
        free = {gpu_type: count for gpu_type, count in free.items() if count > 0}
        if not self._settings.refill or not free:
            return arrived
        most = max(free.values())
        small = sorted(job_id for job_id, gpus in self._waiting.items() if gpus <= most)
        idle = [
            m
            for m in map(self._members.__getitem__, small)
            if not m.assigned and not draft.of(m.id).gpus and (not allocating or self._in_force.counts(m.id))
        ]
        order = ranked(idle, self._in_force, kinds(free), now, self._settings.round_seconds)
        chosen = self._lay_out(draft, idle, [], order, free, now)
        return arrived | {job_id for choice in chosen for job_id in choice.jobs}

    def _start(self, draft: Draft, member: Member, host: Member | None) -> None:
        """On GPUs of the type that it is assigned, if there are any now. `host`: its partner, which has
        some."""
        if host is None:
            gpus = find_together(self._pools, self.sharing, [member.job], member.assigned)
            if gpus is not None:
                place(draft, [member.job], gpus)
            return
        had = draft.of(host.id)
        free = not had.shares_with and self._pools.type_of(had.gpus) == type_of_kind(member.assigned)
        if free and self.sharing.may_join(member.job, host.job, had.gpus):
            place(draft, [host.job, member.job], had.gpus)

    def _lay_out(
        self,
        draft: Draft,
        candidates: Iterable[Member],
        running: Iterable[Member],
        order: Iterable[Choice],
        free: Mapping[str, int],
        now: float,
    ) -> list[Choice]:
        """Assigns jobs the types that they get."""
        own = {(m.id, m.hosted): len(self._open_gpus(m)) for m in running if self._pools.closed}
        selection = Selection(order, {m.id: m.gpus for m in candidates}, free, own)
        chosen = Layout(draft, self._pools, self._members, running, selection, self.sharing).run()
        self.unfinished = self._settings.refill and bool(selection.refused and chosen)
        for choice in chosen:
            for job_id in choice.jobs:
                member = self._members[job_id]
                member.assign(choice.gpu_type, choice.partner(job_id), choice.extra, now)
                self._pending.add(job_id)
        return chosen

    def _open_by_type(self, running: Iterable[Member]) -> dict[str, set[GpuId]]:
        """GPUs of these jobs where others may start too."""
        found: dict[str, set[GpuId]] = {}
        for member in running:
            found.setdefault(type_of_kind(member.hosted), set()).update(self._open_gpus(member))
        return found

    def _open_gpus(self, member: Member) -> Collection[GpuId]:
        """Those of its GPUs where others may start too."""
        own, closed = member.job.placement.gpus, self._pools.closed
        return [gpu for gpu in own if gpu.node not in closed] if closed else own

    def _let_settled(self, draft: Draft, now: float) -> set[JobId]:
        """Start jobs that have no choice of GPUs. Returns those that had no type in this round."""
        if self._pools.closed:
            waiting = map(self._members.__getitem__, self._waiting)
            bound = (member for member in waiting if self._pools.partly_closed(member.job))
            let_return(draft, self._pools.gpus, sorted(bound, key=arrival))
        arrived: set[JobId] = set()
        for member in let_arrive(draft, [self._members[job_id] for job_id in self._promised]):
            kind = self._members[member.id].hosted
            if self._members[member.id].assigned != kind:
                extra = (kind, ALONE) not in self._in_force.of(member.id)
                self._members[member.id].assign(kind, ALONE, extra, now)
                arrived.add(member.id)
        return arrived
