# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs for the jobs that a round has chosen."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from controller.model import NOWHERE, GpuId, GpuSet, Job, JobId, Placement
from controller.policies.mechanisms.rounds.kinds import type_of_kind
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pairs import SharingRules
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.selection import Choice, Selection
from controller.policies.mechanisms.row import Row, Standing
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free

_TRIES = 16
"""How often all that fits is laid out together, where jobs found no place. Then what follows in the list is
laid out one by one."""


def place(draft: Draft, jobs: Sequence[Job], gpus: GpuSet) -> None:
    """They are to run there together."""
    ids = frozenset(job.id for job in jobs)
    for job in jobs:
        draft.put(job.id, Placement(gpus, job.placement.allocation or gpus, ids - {job.id}))


class Layout:
    """GPUs for those that are chosen from a list. Jobs that run on the type that they are given keep their
    GPUs, all others leave theirs. Jobs that wait join the other one of their pair, or are placed node by
    node, those that Slurm has bound first, then the largest gangs. A gang that finds no room takes it from
    jobs chosen after it. Where a choice has no place, the list is gone on with from there."""

    def __init__(
        self,
        draft: Draft,
        pools: Pools,
        members: Mapping[JobId, Member],
        running: Iterable[Member],
        selection: Selection,
        sharing: SharingRules,
    ) -> None:
        """`running`: jobs that keep their GPUs or leave them."""
        self._draft, self._pools, self._members, self._sharing = draft, pools, members, sharing
        self._selection = selection
        self._running = {member.id for member in running}
        self._leaving = set(self._running)
        """Those of them that still have their GPUs and are not chosen."""
        self._kept: dict[Choice, dict[JobId, Placement]] = {}
        """Who goes on with what."""
        self._taken: set[GpuId] = set()
        """Those GPUs."""
        self._started: dict[GpuId, Choice] = {}
        """GPUs given to jobs that wait."""
        self._hopeless: set[tuple[object, ...]] = set()
        """What jobs sought that found no room, not even by taking it from those behind them. Jobs behind them
        find none either until a choice is taken back."""

    def run(self) -> list[Choice]:
        """Who gets GPUs."""
        for number in count(1):
            found = self._selection.go_on(math.inf if number <= _TRIES else 1)
            refused, starting = self._keep(found)
            refused |= self._start([*starting, *found])
            if refused:
                for choice in self._selection.cut(refused):
                    self._lift(choice)
            elif number <= _TRIES or not found:
                break
        return list(self._selection.chosen)

    # -- jobs on GPUs ---------------------------------------------------------------------------------

    def _keep(self, found: Iterable[Choice]) -> tuple[set[Choice], list[Choice]]:
        """Of two that were together and are so no more, the one that was chosen first keeps their GPUs.

        Returns:
            Choices that have no place, and those that have to be placed elsewhere.
        """
        refused, moved = set[Choice](), list[Choice]()
        for choice in found:
            on = [i for i in choice.jobs if i in self._running and self._members[i].hosted == choice.gpu_type]
            if not on:
                continue
            there = self._together(on)
            if any(self._members[i].bound for i in on if i not in there):
                refused.add(choice)
                continue
            for placement in there.values():
                self._taken |= placement.gpus
            if there:
                self._kept[choice] = there
                self._leaving.difference_update(there)
        while self._leaving:
            self._draft.put(self._leaving.pop(), NOWHERE)
        for choice in found:
            for job_id, placement in self._kept.get(choice, {}).items():
                for other in {self._started[gpu] for gpu in placement.gpus if gpu in self._started}:
                    self._lift(other)
                    moved.append(other)
                self._draft.put(job_id, placement)
        return refused, moved

    def _together(self, on: Sequence[JobId]) -> dict[JobId, Placement]:
        """Those of a choice that go on with their GPUs, and how."""
        jobs = [self._members[i].job for i in on]
        jobs.sort(key=lambda job: not self._members[job.id].bound)
        there = [job for job in jobs if self._taken.isdisjoint(job.placement.gpus)]
        there = [job for job in there if job.placement.gpus == there[0].placement.gpus]
        ids = frozenset(job.id for job in there)
        found: dict[JobId, Placement] = {}
        for job in there:
            had = job.placement
            # Guests of a move come and go with their hosts.
            others = (had.shares_with - self._running) | (ids - {job.id})
            as_before = others == had.shares_with
            found[job.id] = had if as_before else Placement(had.gpus, had.allocation, others)
        return found

    def _lift(self, choice: Choice) -> None:
        """Take its GPUs back."""
        for placement in self._kept.pop(choice, {}).values():
            self._taken -= placement.gpus
        for job_id in choice.jobs:
            for gpu in self._draft.of(job_id).gpus:
                self._started.pop(gpu, None)
                self._hopeless.clear()
            self._draft.put(job_id, NOWHERE)

    # -- jobs that wait -------------------------------------------------------------------------------

    def _start(self, found: Iterable[Choice]) -> set[Choice]:
        """Returns choices that have no place."""
        rank, refused = self._selection.chosen, set[Choice]()
        starting: list[tuple[bool, int, int, Choice, list[Job]]] = []
        for choice in found:
            waiting = [job for i in choice.jobs if _waits(job := self._members[i].job)]
            if waiting:
                unbound = not any(job.placement.allocation for job in waiting)
                starting.append((unbound, -waiting[0].gpus, rank[choice], choice, waiting))
        starting.sort()
        for *_, choice, waiting in starting:
            host = next((self._members[i].job for i in choice.jobs if self._draft.of(i).gpus), None)
            if host is not None:
                gpus = self._draft.of(host.id).gpus
                if self._sharing.may_join(waiting[0], host, gpus):
                    place(self._draft, (host, waiting[0]), gpus)
                else:
                    refused.add(choice)
                continue
            found_gpus = None
            if not self._hopeless or self._sought(choice, waiting) not in self._hopeless:
                found_gpus = self._find(choice, waiting) or self._clear(choice, waiting, refused)
            if found_gpus is None:
                self._hopeless.add(self._sought(choice, waiting))
                refused.add(choice)
            else:
                place(self._draft, waiting, found_gpus)
                self._started.update(dict.fromkeys(found_gpus, choice))
        return refused

    def _sought(self, choice: Choice, waiting: Sequence[Job]) -> tuple[object, ...]:
        if len(waiting) > 1 or waiting[0].placement.allocation:
            return choice  # where these may go is a question of just these
        return self._pools.sought(waiting[0], choice.gpu_type)

    def _find(self, choice: Choice, waiting: Sequence[Job]) -> GpuSet | None:
        return find_together(self._pools, self._sharing, waiting, choice.gpu_type)

    def _clear(self, choice: Choice, waiting: Sequence[Job], refused: set[Choice]) -> GpuSet | None:
        """Take GPUs from jobs chosen after this one; those that are not in its way keep theirs."""
        draft, gpu_type = self._draft, type_of_kind(choice.gpu_type)
        after = self._selection.after(self._selection.chosen[choice])
        behind = [c for c in after if c in self._kept and type_of_kind(c.gpu_type) == gpu_type]
        if not behind:
            return None
        mark = draft.mark()
        had = [(other, {i: draft.of(i) for i in other.jobs}) for other in behind]
        for _, placements in had:
            for job_id in placements:
                draft.put(job_id, NOWHERE)
        gpus = self._find(choice, waiting)
        if gpus is None:
            draft.rollback(mark)
            return None
        for other, placements in had:
            if all(placement.gpus.isdisjoint(gpus) for placement in placements.values()):
                for job_id, placement in placements.items():
                    draft.put(job_id, placement)
            else:
                self._lift(other)
                refused.add(other)
        return gpus


class PendingLayout:
    """What the beginning of a round has laid out, until plans have said it. The draft has it; jobs may change
    before."""

    def __init__(self, draft: Draft, gpus: Free) -> None:
        """`gpus`: who has them, as the draft says."""
        self._draft, self._gpus = draft, gpus
        put = sorted(draft.put_since(), key=lambda job_id: bool(draft.of(job_id).gpus))
        self._left = dict.fromkeys(reversed(put))
        """Jobs of which it is to be said, those that leave their GPUs last: they are said first."""
        self._seen: dict[JobId, tuple[Standing, Placement, Placement]] = {}
        """Of jobs that were seen since: what they were then, and what they are to have."""
        self._changed: set[JobId] = set()
        """Those of them that are otherwise now."""
        self._kept: set[GpuId] = set()
        """Their GPUs."""

    def __len__(self) -> int:
        """Of how many jobs it is to be said."""
        return len(self._left)

    def leave(self, row: Row) -> None:
        """The job is about to be seen as it is now."""
        if row.id in self._left:
            before = row.standing, row.job.placement, self._draft.of(row.id)
            self._seen.setdefault(row.id, before)

    def say(self, members: Mapping[JobId, Member], most: int) -> dict[JobId, Placement]:
        """Those that still hold, so many and their partners. A job that is otherwise now keeps what it has,
        and no other job is to have that. `members`: all jobs."""
        for job_id, (*before, to) in self._seen.items():
            member = members.get(job_id)
            if member is not None and [member.standing, member.job.placement] == before:
                self._draft.hold(job_id, to)  # it was put there by an earlier plan
                continue
            del self._left[job_id]
            self._changed.add(job_id)
            self._kept |= member.job.placement.gpus if member is not None else set()
        self._seen.clear()
        found: dict[JobId, Placement] = {}
        while self._left and len(found) < most:
            job_id, _ = self._left.popitem()
            self._say(job_id, members, found)
            for other in found.get(job_id, NOWHERE).shares_with & self._left.keys():
                del self._left[other]
                self._say(other, members, found)
        return found

    def _say(self, job_id: JobId, members: Mapping[JobId, Member], found: dict[JobId, Placement]) -> None:
        placement, job = self._draft.of(job_id), members[job_id].job
        both = {job_id, *placement.shares_with}
        # A job of which it was said that it leaves them may still be there.
        taken = any(not both.issuperset(self._gpus.holders(gpu)) for gpu in placement.gpus - job.promised)
        if not (taken or self._kept & placement.gpus or self._changed & both):
            found[job_id] = placement
        elif not job.placement.gpus:
            self._draft.put(job_id, NOWHERE)


def find_together(pools: Pools, sharing: SharingRules, jobs: Sequence[Job], gpu_type: str) -> GpuSet | None:
    """Idle GPUs of the type, or kind, for a job, or for two that may share them."""
    if len(jobs) == 1:
        return pools.find(jobs[0], gpu_type)
    for first, second in (jobs, jobs[::-1]):
        gpus = pools.find(first, gpu_type)
        if gpus is not None and sharing.may_join(second, first, gpus):
            return gpus
    return None


def _waits(job: Job) -> bool:
    return job.may_start and not job.placement.gpus
