# SPDX-License-Identifier: GPL-2.0-or-later
"""Planning for exclusive gangs in an order: the part that is the same for every such policy.

A policy says in which lane and where in it a job stands; this module decides who runs, finds the GPUs, and
keeps what it knows between calls. The plan depends on the snapshot and the state alone: what is kept in the
object only saves work. It is brought up to date by what changed, which the snapshot says (in simulation) or a
look at every job finds (in the daemon); tests compare all with a plan made from nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Generic, TypeVar

from controller.layered import Version, versioned
from controller.model import Assignment, GpuSet, Job, JobId, Phase, Plan, Snapshot
from controller.policies.base import start_failed
from controller.policies.gangs.lanes import Key, Lane, Shape, select
from controller.policies.gangs.member import ASIDE, FIXED, RUNNING, WAITING, Member, Standing
from controller.policies.gangs.pool import GpuPool, Holding
from controller.policies.gangs.rounding import prepare
from controller.policies.gangs.untold import differing

_QUEUED, _SUSPENDED, _YIELDED, _RUNS = Phase.QUEUED, Phase.SUSPENDED, Phase.YIELDED, Phase.RUNNING
_MAY_START = frozenset({_QUEUED, _SUSPENDED, _YIELDED})
_waiting_count, _running_gpus = attrgetter("waiting_count"), attrgetter("running_gpus")
_ROUNDS = 64
"""How often a plan is begun anew because a shape could not be placed."""
_PORTION_JOBS = 250
"""When so many jobs start, or stop for them, the rest is left to the next plan, which is asked for at once: a
decision takes no longer where thousands are to change places, and Slurm is not asked for all in one go."""


def gpus_words(count: int) -> str:
    """For reasons."""
    return "a free GPU" if count == 1 else f"{count} free GPUs"


def _own_gpus(job: Job) -> GpuSet:
    """Those that a job off its GPUs goes on with: where it was last; if that is not known, its binding."""
    return job.running_on if len(job.running_on) == job.gpus else job.binding


def _by_submission(job_ids: Iterable[JobId], snapshot: Snapshot) -> list[JobId]:
    jobs = snapshot.jobs
    return sorted(job_ids, key=lambda job_id: (jobs[job_id].submit_time, job_id))


A = TypeVar("A")

_Placed = tuple[Member[A], GpuSet, Holding]
"""A job that starts, and where."""


class GangPolicy(ABC, Generic[A]):
    """Base of the policies. One object plans for one cluster."""

    name: str
    _busy: Set[JobId]
    reads_accrual = True
    """Reads times by `run_seconds_at`, so that snapshots need not make running jobs anew."""
    preemptive = True
    backfill = True
    lane_count = 1
    dynamic = False
    """The keys of running jobs change as they run."""
    reshapes = False
    """What `consolidated` says of a job may change while it waits, though its own profile says nothing."""

    def __init__(self) -> None:
        self._reset(Snapshot(0.0, {}, {}))
        self._serial = 0
        self._state: Mapping[str, Any] | None = None

    # -- what a policy says ---------------------------------------------------------------------------

    @abstractmethod
    def load_account(self, job: Job, raw: Any) -> A:
        """What is remembered of a job: from the state, or (None) new."""

    @abstractmethod
    def dump_account(self, member: Member[A], now: float) -> Any:
        """The same for the state; None when there is nothing to remember."""

    @abstractmethod
    def key(self, member: Member[A], now: float) -> Key:
        """Its place in its lane: the smaller the earlier. Unique."""

    def moves(self) -> bool:
        """Whether running jobs change places just now (where `dynamic`). If not, they keep their keys. If so,
        every key is (-class, rank, submission, id)."""
        return self.dynamic

    def ranks(self, members: Sequence[Member[A]], lane: int, now: float) -> Sequence[float]:
        """What stands for the rank in the keys of these jobs of a lane (where `moves`)."""
        raise NotImplementedError

    def lane(self, member: Member[A], now: float) -> int:
        """The lane it stands in."""
        return 0

    def consolidated(self, member: Member[A], now: float) -> bool:
        """Must it be on as few nodes as possible?"""
        return False

    def seen(self, member: Member[A], now: float) -> None:
        """It was observed afresh (before `lane` and `key` are asked)."""

    def first_seen(self, member: Member[A]) -> bool:
        """Whether it is to be observed afresh because it ran for the first time, though as was expected."""
        return False

    def began(self, member: Member[A], now: float) -> None:
        """The plan starts it."""

    def stopped(self, member: Member[A], now: float) -> None:
        """The plan stops it."""

    def gone(self, member: Member[A], now: float) -> None:
        """It left the cluster."""

    def gone_unseen(self, raw: Any, now: float) -> None:
        """A job of the state left while the object knew nothing of it."""

    def due(self, member: Member[A], now: float) -> bool:
        """One of its timers came. True: its lane or key changes."""
        return False

    def next_time(self, member: Member[A], now: float) -> float | None:
        """When it will be due, as it stands now."""
        return None

    def look(self, now: float) -> None:
        """Everything is taken over; deciding comes next."""

    def next_look(self, now: float) -> float | None:
        """When to plan again, beyond the members' own times."""
        return None

    def planned(self, now: float) -> None:
        """The decisions are made."""

    def load_common(self, raw: Mapping[str, Any]) -> None:
        """What is remembered beyond jobs."""

    def dump_common(self) -> Mapping[str, Any]:
        """The same for the state."""
        return {}

    def wake_interval(self) -> float | None:
        """Plan again after so many seconds while jobs wait."""
        return None

    def waiting_words(self, member: Member[A]) -> str:
        """Why it waits, for people."""
        return f"waits for {gpus_words(member.job.gpus)}"

    # -- the plan -------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """Cost: after a few changes, a few steps (see `select`), and a microsecond for each job where the
        snapshot does not say what changed; from scratch, O(jobs log jobs + GPUs)."""
        now = snapshot.time
        self.told = snapshot.changes is not None
        touched = self._follow(snapshot) if state is self._state else None
        known = touched is not None
        if touched is None:
            self._reset(snapshot)
            self._load(state)
            touched = _by_submission(snapshot.jobs, snapshot)
        if self.dynamic:
            prepare(len(touched))
        self._incremental = known
        for job_id in touched:
            self._sync(job_id, snapshot, now)
        if self._unseen:
            for job_id in sorted(self._unseen):
                self.gone_unseen(self._unseen[job_id], now)
            self._unseen.clear()
        self._run_timers(snapshot, now)
        if self._leaving:
            self._admit(now)
        self.look(now)
        if self.dynamic:
            self._reorder(now)
        changed = self._decide(now)
        if self._leaving:
            changed |= self._let_leave(now)
        self.planned(now)
        changed.update(touched, self.moved)
        self.moved.clear()
        self._serial, self._busy = snapshot.serial, snapshot.busy
        return self._write(snapshot, changed, known)

    def _follow(self, snapshot: Snapshot) -> Sequence[JobId] | None:
        """The jobs that are not as they were, in the order to take them over in. None: too much changed, or
        nothing is known yet."""
        changes = snapshot.changes
        told = changes is not None and changes.since == self._serial != 0
        if not told and snapshot.nodes.keys() != self._pool.names:
            return None
        nodes: Iterable[str] = changes.nodes if told and changes is not None else snapshot.nodes
        if not all(self._pool.same_gpus(name, snapshot.nodes.get(name)) for name in nodes):
            return None
        if told and changes is not None:
            touched = sorted(changes.jobs)
        else:
            # As a plan from nothing does: jobs that are due too, and who is gone at the end.
            found = self._differences(snapshot) | {member.job.id for member in self._pop_due(snapshot.time)}
            gone = sorted(found - snapshot.jobs.keys())
            touched = [*_by_submission(found & snapshot.jobs.keys(), snapshot), *gone]
        self._expected.clear()
        return touched

    def _differences(self, snapshot: Snapshot) -> Set[JobId]:
        """The same where nobody says which."""
        now = snapshot.time
        found = differing(
            snapshot.jobs,
            self._members,
            now,
            profiled=lambda member: self.seen(member, now),
            first_seen=self.first_seen,
            reshaped=lambda member: self._reshaped(member, now),
            reshapes=self.reshapes,
        )
        return (
            found
            | (self._members.keys() - snapshot.jobs.keys())
            | snapshot.busy
            | self._busy
            | self._expected
        )

    def _reshaped(self, member: Member[A], now: float) -> bool:
        """Whether a job that waits must be placed otherwise than it had to, though it is as it was."""
        return member.standing is WAITING and self.consolidated(member, now) != member.shape[3]

    def _reset(self, snapshot: Snapshot) -> None:
        self._members: dict[JobId, Member[A]] = {}
        self._lanes = [Lane() for _ in range(self.lane_count)]
        self._pool = GpuPool(snapshot.nodes)
        self._timers: list[tuple[float, JobId]] = []
        self._entries: Version[str, Any] = versioned()
        self._unseen: dict[JobId, Any] = {}
        self._assignments: Version[JobId, Assignment] = versioned()
        self._reasons: Version[JobId, str] = versioned()
        self._leaving: set[JobId] = set()
        """Jobs that wait, and are bound to GPUs of nodes where nothing starts any more."""
        self._incremental = self.told = False
        self._busy = frozenset()
        self._expected: set[JobId] = set()
        """Jobs that the last plan starts or stops: nothing is known of them but what is seen."""
        self._goes_on = False
        """The last plan is but a portion of what is to change."""
        self._ranked = False
        """The keys of running jobs are those that `ranks` gives."""
        self.rekey = False
        self.moved: set[JobId] = set()
        """Jobs whose place or account the policy changed by itself."""

    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over a memory. One that makes no sense (a damaged journal, another version's) counts as none:
        places in queues are lost, and found again from the service that jobs have attained."""
        try:
            self.load_common(state)
            self._unseen = {JobId(int(i)): raw for i, raw in (state.get("jobs") or {}).items()}
        except (TypeError, ValueError, AttributeError, OverflowError):
            self.load_common({})
            self._unseen = {}

    # -- taking over what was observed ----------------------------------------------------------------

    def _standing(self, job: Job, busy: bool, now: float) -> Standing:
        phase = job.phase
        later = job.not_before is not None and job.not_before > now
        if phase is _RUNS:
            if busy:
                return ASIDE
            exempt = job.exempt_until is not None and job.exempt_until > now
            stays = later or exempt or not job.suspendable or not self.preemptive
            return FIXED if stays else RUNNING
        if phase is _QUEUED or phase is _SUSPENDED or phase is _YIELDED:
            return ASIDE if busy or later else WAITING
        return ASIDE if phase is Phase.INELIGIBLE else FIXED

    def _sync(self, job_id: JobId, snapshot: Snapshot, now: float) -> None:
        job = snapshot.jobs.get(job_id)
        member = self._members.get(job_id)
        if job is None:
            if member is not None:
                self._leave(member)
                self._leaving.discard(job_id)
                del self._members[job_id]
                self.gone(member, now)
            return
        standing = self._standing(job, job_id in snapshot.busy, now)
        if member is None:
            member = self._members[job_id] = Member(
                job, self.load_account(job, self._unseen.pop(job_id, None))
            )
        member.job = job
        member.ran_from = job.run_seconds_at(now) - now
        held: GpuSet = frozenset()
        closed = self._pool.closed
        if standing is RUNNING or standing is FIXED:
            held = job.running_on or job.binding
            if closed and held and all(gpu.node in closed for gpu in held):
                standing = FIXED  # where nothing starts, its GPUs are of use to nobody else
        member.standing = standing
        if held is not member.held:
            self._hold(member, held)
        member.demand = size = job.request.gpus
        if closed:
            member.demand = max(0, size - sum(gpu.node in closed for gpu in _own_gpus(job)))
            if member.demand == size or job.phase not in _MAY_START:
                member.leaving = False
                self._leaving.discard(job_id)
            elif job_id not in self._leaving:
                member.leaving = True
                self._leaving.add(job_id)
        self.seen(member, now)
        self._enter(member, now)

    def _hold(self, member: Member[A], held: GpuSet) -> None:
        """These GPUs are its own, and no others."""
        if held != member.held:
            self._pool.give(member.holding)
            member.holding = self._pool.holding(held)
            self._pool.take(member.holding)
        member.held = held

    def _leave(self, member: Member[A]) -> None:
        """Take it out of lanes and pool."""
        self._leave_lane(member)
        self._hold(member, frozenset())

    def _leave_lane(self, member: Member[A]) -> None:
        if member.entered is WAITING:
            self._lanes[member.lane].remove_waiting(member.entry, member.shape)
        elif member.entered is RUNNING:
            self._lanes[member.lane].remove_running(member.entry)
        member.entered = ASIDE

    def _enter(self, member: Member[A], now: float) -> None:
        """From where it is to where its standing, lane and key say. (The pool counts its GPUs already.)"""
        lane = self.lane(member, now)
        shape = self._shape(member, now) if member.standing is WAITING else member.shape
        self._enter_lane(member, lane, shape, now)
        time, job = self.next_time(member, now), member.job
        later = {ASIDE: job.not_before, FIXED: job.exempt_until}.get(member.standing)
        if later is not None and later > now:
            time = later if time is None else min(time, later)
        if time != member.timer:
            member.timer = time
            if time is not None:
                heappush(self._timers, (time, job.id))

    def _enter_lane(self, member: Member[A], lane: int, shape: Shape, now: float) -> None:
        """The same, by a new key. Most come back to the place that they have already."""
        standing = member.standing
        if standing is RUNNING:
            entry = (*self.key(member, now), member.demand)
        elif standing is WAITING and not member.leaving:
            entry = self.key(member, now)
        else:
            entry, standing = (), ASIDE
        if (
            standing is member.entered
            and entry == member.entry
            and lane == member.lane
            and shape == member.shape
        ):
            return
        self._leave_lane(member)
        member.entered, member.entry, member.lane, member.shape = standing, entry, lane, shape
        if standing is WAITING:
            self._lanes[lane].add_waiting(entry, shape)
        elif standing is RUNNING:
            self._lanes[lane].add_running(entry)

    def _shape(self, member: Member[A], now: float) -> Shape:
        job, request = member.job, member.job.request
        return (
            member.demand,
            request.nodes,
            request.gpu_types,
            self.consolidated(member, now),
            job.binding or None,
            job.excluded_nodes or None,
            job.required_nodes or None,
            job.cpus_per_node,
            job.memory_per_node_bytes,
        )

    def _pop_due(self, now: float) -> list[Member[A]]:
        """Members whose timers came, in any order."""
        due: list[Member[A]] = []
        while self._timers and self._timers[0][0] <= now + 1e-6:
            time, job_id = heappop(self._timers)
            member = self._members.get(job_id)
            if member is not None and member.timer == time:
                member.timer = None
                due.append(member)
        return due

    def _run_timers(self, snapshot: Snapshot, now: float) -> None:
        due = self._pop_due(now)
        if len(due) > 1:
            due.sort(key=lambda m: (m.job.submit_time, m.job.id))
        for member in due:
            job = member.job
            again = member.standing is ASIDE and job.not_before is not None and job.not_before <= now + 1e-6
            self.moved.add(job.id)
            if again:
                member.standing = WAITING
            elif member.standing is FIXED:
                self._sync(job.id, snapshot, now)
            self.due(member, now)
            self._enter(member, now)

    def _reorder(self, now: float) -> None:
        """Running jobs into the order of this moment."""
        if self.rekey:
            self.rekey = False
            self._rekey_waiting(now)
        if not self.moves():
            self._ranked = False
            return
        if not self._waited_for():
            return  # (their order is of no interest until somebody waits)
        members = self._members
        for number, lane in enumerate(self._lanes):
            if not lane.running_count:
                continue
            entries = lane.running
            running = [members[entry[-2]] for entry in entries]
            if not self._ranked:
                entries = [(*self.key(member, now), member.demand) for member in running]
            # (For every running job at every plan, and so written with few steps, and few looks at jobs.)
            ranks = self.ranks(running, number, now)
            fresh = [
                (order, rank, submitted, job_id, gpus)
                for (order, _, submitted, job_id, gpus), rank in zip(entries, ranks, strict=True)
            ]
            for member, entry in zip(running, fresh, strict=True):
                member.entry = entry
            fresh.sort()
            lane.reorder(fresh)
        self._ranked = True

    def _rekey_waiting(self, now: float) -> None:
        """All that wait, by new keys."""
        for number, lane in enumerate(self._lanes):
            for line, keys in lane.waiting():
                members = [self._members[key[-1]] for key in keys]
                line.replace(sorted(self._new_keys(members, number, now)))

    def _new_keys(self, members: Sequence[Member[A]], lane: int, now: float) -> list[Key]:
        """Of some that wait."""
        keys: list[Key]
        if self.moves():
            jobs = [member.job for member in members]
            keys = [
                (-job.priority_class, rank, job.submit_time, job.id)
                for job, rank in zip(jobs, self.ranks(members, lane, now), strict=True)
            ]
        else:
            keys = [self.key(member, now) for member in members]
        for member, key in zip(members, keys, strict=True):
            member.entry = key
        return keys

    # -- deciding -------------------------------------------------------------------------------------

    def _waited_for(self) -> bool:
        """Whether anybody waits in a lane. Where nobody does, all go on that run."""
        return any(map(_waiting_count, self._lanes))

    def _decide(self, now: float) -> set[JobId]:
        """Select and place; returns the jobs whose part of the plan changed."""
        self._goes_on = False
        if not self._waited_for():
            return set()
        members, pool, portion = self._members, self._pool, _PORTION_JOBS
        changed: set[JobId] = set()
        skip: set[Shape] = set()
        for attempt in range(_ROUNDS):
            kept_gpus = sum(map(_running_gpus, self._lanes))
            selection = select(self._lanes, pool.free_count + kept_gpus, skip, backfill=self.backfill)
            stops = selection.stops
            pool.give_all([members[job_id].holding for job_id in stops])
            placed: list[_Placed[A]] = []
            failed: set[Shape] = set()
            # (Who has to stop for whom is counted only where there may be too many.)
            many = len(selection.starts) + len(stops) > portion
            holders = {gpu: job_id for job_id in stops for gpu in members[job_id].held} if many else {}
            for job_id in selection.starts:
                if portion <= 0:
                    break
                member = members[job_id]
                found = self._find(member)
                if found is None and self.preemptive:
                    found = self._make_room(member, stops)
                if found is None:
                    failed.add(member.shape)
                if failed or found is None:
                    # Of those behind it only the ones without a place are looked for, or each would cost a
                    # round: of the jobs bound to GPUs that others have there may be many.
                    continue
                pool.take(found)
                gpus = pool.gpus(found)
                placed.append((member, gpus, found))
                portion -= 1
                if holders:
                    portion -= len({holders[gpu] for gpu in gpus if gpu in holders})
            self._goes_on = not failed and len(placed) < len(selection.starts)
            final = not failed or not self.backfill or attempt == _ROUNDS - 1
            if final and not self._goes_on:
                # (Without backfill, the one that cannot be placed blocks all behind it.)
                return changed | self._commit(placed, stops, now)
            # Those placed have their places; whether others must stop is decided anew: without the one that
            # could not be placed, or by the next plan.
            taken = {gpu for _, gpus, _ in placed for gpu in gpus}
            in_the_way: list[JobId] = []
            go_on: list[JobId] = []
            for job_id in stops:
                (go_on if taken.isdisjoint(members[job_id].held) else in_the_way).append(job_id)
            pool.take_all([members[job_id].holding for job_id in go_on])
            changed |= self._commit(placed, in_the_way, now)
            if not failed:
                return changed
            skip |= failed
        raise AssertionError("the last round returns")

    def _admit(self, now: float) -> None:
        """A gang that is bound to drained nodes and to open ones stands in its lane, for its part of the open
        ones, while its part of the drained ones is idle."""
        for job_id in sorted(self._leaving):
            member = self._members[job_id]
            drained = [gpu for gpu in _own_gpus(member.job) if gpu.node in self._pool.closed]
            leaving = not member.demand or not self._pool.all_idle(drained)
            if leaving is not member.leaving:
                member.leaving = leaving
                self._enter(member, now)

    def _let_leave(self, now: float) -> set[JobId]:
        """A node that is being drained gets empty when the jobs bound to it have ended: those that are off
        their GPUs go on there when these are idle. (No lane has them: they are in nobody's way.)"""
        waiting = [
            member
            for member in map(self._members.__getitem__, self._leaving)
            if member.standing is WAITING and not member.demand
        ]
        placed: list[_Placed[A]] = []
        for member in sorted(waiting, key=lambda m: (self.lane(m, now), self.key(m, now))):
            job, gpus = member.job, _own_gpus(member.job)
            if len(gpus) == job.gpus and self._pool.all_idle(gpus):
                holding = self._pool.holding(gpus)
                self._pool.take(holding)
                placed.append((member, gpus, holding))
        return self._commit(placed, [], now)

    def _find(self, member: Member[A]) -> Holding | None:
        job, pool = member.job, self._pool
        if not job.binding:
            return pool.find(job, consolidated=bool(member.shape[3]))
        # Slurm has bound it already: it goes on where it is, or (floating) on any free GPUs there.
        if len(job.running_on) == job.gpus and pool.all_idle(job.running_on):
            return pool.holding(job.running_on)
        if job.movable and job.floating:
            free = [gpu for gpu in sorted(job.binding) if pool.all_free((gpu,))]
            if len(free) >= job.gpus:
                return pool.holding(free[: job.gpus])
        return None

    def _make_room(self, member: Member[A], stops: list[JobId]) -> Holding | None:
        """There are GPUs enough, but not where it can use them: stop jobs behind it, the last first. Adds
        them to `stops`."""
        pool, gone = self._pool, set(stops)
        behind = [
            entry[-2]
            for number in range(member.lane, self.lane_count)
            for entry in self._lanes[number].running
            if entry[-2] not in gone and (number > member.lane or entry > member.entry)
        ]
        released: list[JobId] = []
        found: Holding | None = None
        for job_id in reversed(behind):
            pool.give(self._members[job_id].holding)
            released.append(job_id)
            if pool.free_count >= member.demand:
                found = self._find(member)
                if found is not None:
                    break
        gpus = pool.gpus(found or ())
        for job_id in released:
            if gpus.isdisjoint(self._members[job_id].held):
                pool.take(self._members[job_id].holding)
            else:
                stops.append(job_id)
        return found

    def _commit(self, placed: Sequence[_Placed[A]], stops: list[JobId], now: float) -> set[JobId]:
        changed: set[JobId] = set()
        for job_id in reversed(stops):
            member = self._members[job_id]
            # Its GPUs are given back to the pool already.
            member.held, member.holding = frozenset(), ()
            member.standing = WAITING
            self.stopped(member, now)
            self._enter(member, now)
            changed.add(job_id)
        for member, gpus, holding in placed:
            member.standing = RUNNING if self.preemptive else FIXED
            self.began(member, now)
            member.held, member.holding = gpus, holding
            self._enter(member, now)
            changed.add(member.job.id)
        self._expected |= changed
        return changed

    # -- writing the plan -----------------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, changed: set[JobId], incremental: bool) -> Plan:
        now = snapshot.time
        if changed or not incremental or not self.told:
            self._write_jobs(changed, now)
            # (Who says what changed keeps no journal, where memories must be plain data.)
            jobs: Mapping[str, Any] = self._entries if self.told else self._entries.whole()
            self._state = {"v": 1, "jobs": jobs, **self.dump_common()}
        assert self._state is not None
        while self._timers and self._void(self._timers[0]):
            heappop(self._timers)
        wake_at = self.next_look(now)
        if self._goes_on:
            wake_at = now
        elif self._timers and (wake_at is None or self._timers[0][0] < wake_at):
            wake_at = self._timers[0][0]
        interval = self.wake_interval()
        if interval and self._waited_for() and any(lane.running_count for lane in self._lanes):
            wake_at = now + interval if wake_at is None else min(wake_at, now + interval)
        return Plan(
            self._assignments,
            self._reasons,
            self._state,
            wake_at,
            changed=frozenset(changed) if incremental else None,
        )

    def _void(self, timer: tuple[float, JobId]) -> bool:
        time, job_id = timer
        member = self._members.get(job_id)
        return member is None or member.timer != time

    def _write_jobs(self, changed: set[JobId], now: float) -> None:
        """The parts of these jobs. Plans are frozen: what is handed out is never changed again."""
        assignments: dict[JobId, Assignment] = {}
        reasons: dict[JobId, str] = {}
        entries: dict[str, Any] = {}
        unassigned: set[JobId] = set()
        unexplained: set[JobId] = set()
        forgotten: set[str] = set()
        for job_id in changed:
            member, last, word = self._members.get(job_id), self._assignments.get(job_id), str(job_id)
            assignment, reason, entry = None, None, None
            if member is not None:
                assignment, reason = self._part(member, last, now)
                entry = self.dump_account(member, now)
            # (Most are as they were.)
            if assignment is None:
                if last is not None:
                    unassigned.add(job_id)
            elif assignment is not last:
                assignments[job_id] = assignment
            if reason is None:
                if job_id in self._reasons:
                    unexplained.add(job_id)
            else:
                reasons[job_id] = reason
            if entry is not None:
                entries[word] = entry
            elif word in self._entries:
                forgotten.add(word)
        self._assignments = self._assignments.with_changes(assignments, unassigned)
        self._reasons = self._reasons.with_changes(reasons, unexplained)
        self._entries = self._entries.with_changes(entries, forgotten)

    def _part(
        self, member: Member[A], last: Assignment | None, now: float
    ) -> tuple[Assignment | None, str | None]:
        """What a job should do, and why. `last`: what it should do before."""
        job = member.job
        if member.standing is RUNNING or member.standing is FIXED:
            binding = job.binding or member.held
            if last is None or not last.run or last.gpus != member.held or last.binding != binding:
                last = Assignment(True, member.held, binding)
            return last, None if job.phase is _RUNS else "its turn, and the GPUs are free"
        if member.standing is WAITING:
            words = self.waiting_words(member)
            if job.phase is _RUNS:
                words = f"stops for jobs before it: {words}"
            return Assignment(False, job.running_on, job.binding) if job.binding else None, words
        if job.phase is _RUNS:
            # On its way off its GPUs.
            return Assignment(False, job.running_on, job.binding), None
        if job.not_before is not None and job.not_before > now:
            return None, start_failed(job.not_before)
        return None, None
