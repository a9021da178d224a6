# SPDX-License-Identifier: GPL-2.0-or-later
"""What the policy works on: the fleet, the queue and the jobs that take turns, kept from plan to plan.

A book follows from a snapshot and a state. Keeping it only saves work: a plan from a kept book that was told
what changed is the plan from a new one (tests compare both ways).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from controller.layered import Version, versioned
from controller.model import ALLOCATED, Assignment, Job, JobId, Phase, Snapshot
from controller.policies.differences import as_before
from controller.policies.gandiva.fleet import Fleet, Place, settled_affinity
from controller.policies.gandiva.slicing import Member
from controller.policies.gandiva.state import Seat, Service, State
from controller.policies.gandiva.waiting import Waiting, queue_key
from controller.policies.servers import by_node, refusal, share_per_node

PINNED = frozenset({Phase.STARTING, Phase.STUCK, Phase.COMPLETING, Phase.UNKNOWN})


class Book:
    """Kept by one policy object."""

    def __init__(self, snapshot: Snapshot, state: State) -> None:
        self.jobs = snapshot.jobs
        self.busy = snapshot.busy
        self.serial = 0
        self.fleet = Fleet(snapshot.nodes, state.affinity)
        self.service = dict(state.service)
        self.seats = dict(state.seats)
        self.slice_start = dict(state.slice_start)
        self.state: State | None = None
        """What was handed out last."""

        self.queue, self.seated = Waiting(), Waiting()
        self.hopeless: dict[Hashable, str] = {}
        """Kinds of jobs that found no room, and why, as long as no room is made."""
        self.room_made = True
        """Somewhere there may be more room than when the queue was looked at last."""
        self.room_coming = False
        """The same, for the next plan."""
        self.fresh: set[JobId] = set()
        """Jobs that came to the queue since it was looked at."""
        self.later: dict[JobId, float] = {}
        """Queued jobs that are not to be tried before a time."""
        self.placed: dict[JobId, Member] = {}
        """Queued jobs that the last plan starts."""

        self.members: dict[JobId, Member] = {}
        self.on: dict[str, set[JobId]] = {}
        """Who takes turns on each server."""
        self.spanning: dict[str, set[JobId]] = {}
        """Those of them that take turns on other servers too."""
        self.dirty = {*state.affinity, *state.slice_start}
        """Servers whose turns must be planned anew."""
        self.emptied = set(self.fleet.servers)
        """Servers that lost a job since the queue was looked at."""
        self.unsettled: set[str] = set()
        """Servers that are not yet as the last plan wants them."""
        self.boundaries: dict[str, float] = {}
        """When turns change next, by the first server of each domain where jobs wait."""

        self.assignments: Version[JobId, Assignment] = versioned()
        self.reasons: Version[JobId, str] = versioned()
        # Where seats have become scarce, those before in the queue keep theirs.
        present = [snapshot.jobs[JobId(i)] for i in state.seats if i in snapshot.jobs]
        self.seats = {job.id: state.seats[job.id] for job in present}
        self.sync([job.id for job in sorted(present, key=queue_key)], snapshot)
        self.sync((i for i in snapshot.jobs if i not in state.seats), snapshot)
        for job_id in [i for i in self.service if i not in snapshot.jobs]:
            del self.service[job_id]
        self.slice_start_changed = self.service_changed = self.seats_changed = True

    # -- following the snapshots ------------------------------------------------------------------------

    def follow(self, snapshot: Snapshot) -> set[JobId] | None:
        """Take over what changed; returns the jobs. None: too much changed, begin a new book."""
        changes = snapshot.changes
        if changes is not None and changes.since == self.serial != 0:
            nodes: Iterable[str] = changes.nodes
            touched = set(changes.jobs)
        else:
            if snapshot.nodes.keys() != self.fleet.servers.keys():
                return None
            nodes = snapshot.nodes
            touched = self._differences(snapshot)
        for name in nodes:
            server = self.fleet.servers.get(name)
            before = server.memory_free_bytes if server is not None else None
            if not self.fleet.same_offer(name, snapshot.nodes.get(name)):
                return None
            if server is not None and server.memory_free_bytes != before:
                self.room_made = True
                if (server.memory_free_bytes or 0) < 0:
                    # Not enough for all who have a seat here.
                    return None
        touched |= self.busy | snapshot.busy
        touched.update(self.placed)
        touched.update([i for i, time in self.later.items() if time <= snapshot.time])
        self.jobs, self.busy = snapshot.jobs, snapshot.busy
        self.dirty |= self.unsettled
        self.unsettled.clear()
        self.sync(sorted(touched), snapshot)
        return touched

    def _differences(self, snapshot: Snapshot) -> set[JobId]:
        """Jobs that are not as they were, when nobody says which."""
        jobs, before = snapshot.jobs, self.jobs
        if jobs is before:
            return set()
        touched = before.keys() - jobs.keys()
        for job_id, job in jobs.items():
            old = before.get(job_id)
            if old is not job and (old is None or not as_before(old, job)):
                touched.add(job_id)
        return touched

    def sync(self, touched: Iterable[JobId], snapshot: Snapshot) -> None:
        """Put these jobs where they are now."""
        for job_id in touched:
            job = snapshot.jobs.get(job_id)
            if job is not None and self._stays_bound(job):
                self.members[job_id] = _bound_member(job, job_id in snapshot.busy)
                self._check_weight(job, snapshot.time)
                continue
            before = self.forget(job_id)
            if job is None:
                self._left(before, None)
                if self.service.pop(job_id, None) is not None:
                    self.service_changed = True
                self.drop_seat(job_id)
                continue
            self._check_weight(job, snapshot.time)
            self._arrange(job, snapshot)
            self._left(before, self.fleet.places.get(job_id))

    def _stays_bound(self, job: Job) -> bool:
        """Whether it is bound as before, which is so for most that changed: they were stopped or resumed."""
        place, member = self.fleet.places.get(job.id), self.members.get(job.id)
        if (
            place is None
            or member is None
            or job.id in self.placed
            or job.id in self.seats
            or job.phase not in ALLOCATED
            or member.binding != job.binding
            or member.gpus != job.gpus
        ):
            return False
        if place.on != job.running_on and job.floating:
            self.fleet.move(job.id, job.running_on)
        self.dirty.update(place.nodes)
        return True

    def _check_weight(self, job: Job, now: float) -> None:
        """What it received under another weight is settled."""
        account = self.service.get(job.id)
        if account is not None and account.weight != job.request.weight:
            ran = job.run_seconds_at(now)
            self.service[job.id] = Service(account.at(ran), ran, job.request.weight)
            self.service_changed = True

    def _left(self, before: Place | None, after: Place | None) -> None:
        """Somebody changed places."""
        for place in (before, after):
            if place is not None:
                self.dirty.update(place.nodes)
        if before is not None and (after is None or not before.takes_the_same(after)):
            self.emptied.update(before.nodes)
            self.room_made = True

    def _arrange(self, job: Job, snapshot: Snapshot) -> None:
        busy = job.id in snapshot.busy
        seat = self.seats.get(job.id)
        if job.binding:
            self.fleet.count_in(job.id, _bound_place(job))
        if seat is not None:
            if job.phase is Phase.QUEUED and not job.binding and self._seat_stands(job, seat):
                self.fleet.count_in(job.id, seat_place(job, seat))
            else:
                self.drop_seat(job.id)
                seat = None
        if job.phase in ALLOCATED and job.binding:
            self.add_member(_bound_member(job, busy))
        elif seat is not None:
            self.add_member(seat_member(job, seat))
        if job.phase is Phase.QUEUED and not busy:
            if job.not_before is not None and job.not_before > snapshot.time:
                self.later[job.id] = job.not_before
            else:
                (self.queue if seat is None else self.seated).add(job)
                self.fresh.add(job.id)

    def _seat_stands(self, job: Job, seat: Seat) -> bool:
        """Whether a waiting job keeps its place in the rotation."""
        share = job.gpus // len(seat.nodes)
        servers = [self.fleet.servers.get(name) for name in seat.nodes]
        return all(server is not None and refusal(job, server, share) is None for server in servers)

    def forget(self, job_id: JobId) -> Place | None:
        """Take it out of everything but its account and its seat. Returns its place."""
        place = self.fleet.count_out(job_id)
        self.queue.remove(job_id)
        self.seated.remove(job_id)
        self.fresh.discard(job_id)
        self.later.pop(job_id, None)
        self.placed.pop(job_id, None)
        self.remove_member(job_id)
        return place

    def drop_seat(self, job_id: JobId) -> None:
        """It has no seat any more."""
        if self.seats.pop(job_id, None) is not None:
            self.seats_changed = True

    # -- who takes turns -----------------------------------------------------------------------------

    def add_member(self, member: Member) -> None:
        """It takes turns on the servers of its binding."""
        self.members[member.job_id] = member
        names = {gpu.node for gpu in member.binding}
        for name in names:
            self.on.setdefault(name, set()).add(member.job_id)
            if len(names) > 1:
                self.spanning.setdefault(name, set()).add(member.job_id)
        self.dirty |= names

    def remove_member(self, job_id: JobId) -> None:
        """It does not any more."""
        member = self.members.pop(job_id, None)
        if member is None:
            return
        for name in {gpu.node for gpu in member.binding}:
            self.on[name].discard(job_id)
            if name in self.spanning:
                self.spanning[name].discard(job_id)
            self.dirty.add(name)

    def domain(self, name: str) -> tuple[str, ...]:
        """The servers that are sliced together with this one, itself included, in order."""
        if not self.spanning.get(name):
            return (name,)
        names, left = {name}, [name]
        while left:
            for job_id in self.spanning.get(left.pop(), ()):
                for gpu in self.members[job_id].binding:
                    if gpu.node not in names:
                        names.add(gpu.node)
                        left.append(gpu.node)
        return tuple(sorted(names))

    # -- after changes -------------------------------------------------------------------------------

    def settle_affinity(self) -> None:
        """The affinity of servers whose jobs changed."""
        jobs = self.jobs
        for name in self.dirty:
            server = self.fleet.servers.get(name)
            if server is not None:
                gangs = [(jobs[job_id].gpus, share) for job_id, share in server.members.items()]
                size = settled_affinity(self.fleet.affinity.get(name), gangs)
                if self.fleet.set_affinity(name, size):
                    self.room_made = True

    def handed_out(self) -> State:
        """The state to remember; the one of before when nothing of it changed."""
        old = self.state
        affinity = self.fleet.affinity
        if old is None:
            made = State(dict(affinity), dict(self.service), dict(self.seats), dict(self.slice_start))
        else:
            made = State(
                old.affinity if old.affinity == affinity else dict(affinity),
                dict(self.service) if self.service_changed else old.service,
                dict(self.seats) if self.seats_changed else old.seats,
                dict(self.slice_start) if self.slice_start_changed else old.slice_start,
            )
            same = made.affinity is old.affinity and made.service is old.service
            if same and made.seats is old.seats and made.slice_start is old.slice_start:
                made = old
        self.service_changed = self.seats_changed = self.slice_start_changed = False
        self.state = made
        return made


def _bound_place(job: Job) -> Place:
    """Where Slurm has put it. (Slurm's free memory leaves out already what such jobs hold.)"""
    ordinals = by_node(job.binding)
    if job.floating:
        return Place(tuple(ordinals), share_per_node(job), {}, on=job.running_on)
    return Place(tuple(ordinals), share_per_node(job), ordinals)


def seat_place(job: Job, seat: Seat) -> Place:
    """Where it waits for its first turn: exact GPUs for a gang over several servers."""
    exact: Mapping[str, tuple[int, ...]] = by_node(seat.gpus()) if len(seat.nodes) > 1 else {}
    return Place(seat.nodes, job.gpus // len(seat.nodes), exact, job.memory_per_node_bytes)


def seat_member(job: Job, seat: Seat) -> Member:
    """Its part in the turns of the servers it has a seat on."""
    gpus = seat.gpus()
    return Member(
        job.id,
        job.priority_class,
        (job.submit_time, job.id),
        job.gpus,
        fixed=gpus if len(seat.nodes) > 1 else frozenset(),
        server=seat.nodes[0],
        last=job.running_on,
        binding=gpus,
    )


def _bound_member(job: Job, busy: bool) -> Member:
    """Its part in the turns of the servers it is bound to."""
    pinned = job.phase in PINNED
    running = job.phase is Phase.RUNNING or pinned
    stays = pinned or busy or (running and not job.suspendable)
    fixed, server = (job.running_on if job.floating else job.binding), ""
    # What cannot be suspended cannot move either: it has just the GPUs that it is on.
    if job.floating and (job.movable or not job.running_on) and not stays:
        fixed, server = frozenset(), next(iter(job.binding)).node
    return Member(
        job.id,
        job.priority_class,
        (job.submit_time, job.id),
        job.gpus,
        fixed=fixed,
        server=server,
        last=job.running_on,
        running=running,
        pinned=pinned or (running and (busy or not job.suspendable)),
        binding=job.binding,
    )
