# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy itself: place by Algorithm 1, then give every server's GPUs to the jobs in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.layered import versioned
from controller.model import Assignment, GpuSet, Job, JobId, Plan, Snapshot
from controller.policies.base import start_failed
from controller.policies.gandiva.algorithm1 import STAGE_WORDS, Choice, Stage, get_nodes
from controller.policies.gandiva.book import Book, seat_member, seat_place
from controller.policies.gandiva.fleet import Place
from controller.policies.gandiva.settings import GandivaSettings
from controller.policies.gandiva.slicing import Member, choose, locate
from controller.policies.gandiva.state import Seat, Service, State
from controller.policies.gandiva.waiting import Visits
from controller.policies.servers import by_node, refusal

_PORTION_JOBS = 500
"""Turns of so many jobs are changed by one plan at a time; the next plan, which is asked for at once, takes
those that are left. So a decision for a large cluster whose slices began together takes no longer than one
for a small cluster, Slurm is not asked for thousands of switches at once, and the slices drift apart."""


@dataclass(slots=True)
class _Planning:
    """One call of plan(): the input, and what becomes new in the answer."""

    snapshot: Snapshot
    book: Book
    changed: set[JobId]
    assignments: dict[JobId, Assignment] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Domain:
    """Servers that are sliced together, while their turns are planned."""

    names: tuple[str, ...]
    members: list[Member]
    usable: dict[str, GpuSet]
    start: float
    """When the slice began."""
    going_on: list[Member]
    """Who runs if nobody's slice is over."""

    @property
    def some_wait(self) -> bool:
        return len(self.going_on) < len(self.members)


class Gandiva:
    """Algorithm 1 and weighted fair slicing (OSDI'18, sections 4.1-4.2; SPEC 1.3, 1.8)."""

    name = "gandiva"
    reads_accrual = True

    def __init__(self, settings: GandivaSettings | None = None) -> None:
        self._settings = settings or GandivaSettings()
        self._book: Book | None = None

    def shift_times(self, raw: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The memory after the time of day was set by so much."""
        state = State.load(raw)
        moved = {name: start + seconds for name, start in state.slice_start.items()}
        return State(state.affinity, state.service, state.seats, moved)

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """Cost: proportional to the jobs on servers where something changed or a slice is over, and a search
        for each kind of job that waits; from scratch, O(jobs log jobs + GPUs)."""
        book, self._book = self._book, None
        touched = book.follow(snapshot) if book is not None and state is book.state else None
        if book is None or touched is None:
            book = Book(snapshot, State.load(state))
            planning = _Planning(snapshot, book, set())
        else:
            planning = _Planning(snapshot, book, touched)
        book.settle_affinity()
        self._place_queue(planning)
        self._take_turns(planning)
        self._book = book
        return self._write(planning, from_scratch=touched is None)

    def _write(self, planning: _Planning, *, from_scratch: bool) -> Plan:
        book, changed = planning.book, planning.changed
        if from_scratch:
            book.assignments, book.reasons = versioned(planning.assignments), versioned(planning.reasons)
        elif changed:
            book.assignments = book.assignments.with_changes(planning.assignments, changed)
            book.reasons = book.reasons.with_changes(planning.reasons, changed)
        book.serial = planning.snapshot.serial
        times = [*book.later.values(), *book.boundaries.values()]
        return Plan(
            book.assignments,
            book.reasons,
            book.handed_out(),
            min(times, default=None),
            changed=None if from_scratch else frozenset(changed),
        )

    # -- placement -----------------------------------------------------------------------------------

    def _place_queue(self, planning: _Planning) -> None:
        book = planning.book
        for job_id, retry_at in book.later.items():
            planning.reasons[job_id] = start_failed(retry_at)
            planning.changed.add(job_id)
        visits = Visits()
        hopeless, before = book.hopeless, dict(book.hopeless)
        if book.room_made or any(self._may_find_room(book, job_id) for job_id in book.fresh):
            hopeless = book.hopeless = {}
            for kind, line in book.queue.lines.items():
                visits.push_line(line, seated=False, kind=kind)
            self._visit_seated(planning, visits)
        while (turn := visits.pop()) is not None:
            job = book.jobs[turn.key[2]]
            if turn.seated:
                self._try_to_leave_seat(planning, visits, job)
            elif turn.kind not in hopeless:
                choice = get_nodes(job, book.fleet, self._settings.max_jobs_per_gpu)
                if choice is None:
                    # Room only shrinks while this plan is made: nobody of its kind finds any.
                    hopeless[turn.kind] = self._why_queued(planning, job)
                    continue
                self._enter(planning, job, choice)
                visits.push_line(book.queue.lines.get(turn.kind, []), seated=False, kind=turn.kind)
        for kind, words in hopeless.items():
            if before.get(kind) != words:
                for key in book.queue.lines.get(kind, ()):
                    planning.reasons[key[2]] = words
                    planning.changed.add(key[2])
        for job_id in book.fresh:
            if job_id in book.queue:
                planning.reasons[job_id] = hopeless[book.queue.kind(job_id)]
                planning.changed.add(job_id)
        book.fresh.clear()
        book.emptied.clear()
        book.room_made, book.room_coming = book.room_coming, False

    def _may_find_room(self, book: Book, job_id: JobId) -> bool:
        """Whether somebody who came may be better off than those who wait."""
        return job_id not in book.queue or book.queue.kind(job_id) not in book.hopeless

    def _visit_seated(self, planning: _Planning, visits: Visits) -> None:
        """Jobs with a seat that may find free GPUs: any, where there are some; its own servers', where the
        seats themselves are all that is left."""
        book = planning.book
        most = book.fleet.most_free()
        for kind, line in book.seated.lines.items():
            if most > 0:
                visits.push_line(line, seated=True, kind=kind)
        for name in book.emptied:
            server = book.fleet.servers.get(name)
            if server is not None and server.free >= 0:
                for job_id in server.members:
                    if job_id in book.seated:
                        key = book.seated.key(job_id)
                        if visits.last is None or key > visits.last:
                            kind = book.seated.kind(job_id)
                            visits.push(key, seated=True, kind=kind)

    def _try_to_leave_seat(self, planning: _Planning, visits: Visits, job: Job) -> None:
        """Free GPUs, if some have come up; else it keeps the turn it has been waiting for."""
        book = planning.book
        place = book.fleet.count_out(job.id)
        assert place is not None
        choice = get_nodes(job, book.fleet, self._settings.max_jobs_per_gpu)
        if choice is None or choice.stage is Stage.OVERSUBSCRIBE:
            book.fleet.count_in(job.id, place)
            return
        book.drop_seat(job.id)
        book.remove_member(job.id)
        book.seated.remove(job.id)
        book.emptied.update(place.nodes)
        book.room_coming = True
        self._enter(planning, job, choice)
        self._visit_seated(planning, visits)

    def _enter(self, planning: _Planning, job: Job, choice: Choice) -> None:
        book = planning.book
        book.queue.remove(job.id)
        planning.changed.add(job.id)
        if choice.stage is Stage.OVERSUBSCRIBE:
            binding = tuple((g.node, g.ordinal) for g in sorted(choice.binding))
            seat = book.seats[job.id] = Seat(nodes=choice.nodes, binding=binding)
            book.seats_changed = True
            book.seated.add(job)
            book.fleet.count_in(job.id, seat_place(job, seat))
            book.add_member(seat_member(job, seat))
        else:
            exact = by_node(choice.binding)
            share = job.gpus // len(choice.nodes)
            book.fleet.count_in(job.id, Place(choice.nodes, share, exact, job.memory_per_node_bytes))
            member = Member(
                job.id,
                job.priority_class,
                (job.submit_time, job.id),
                job.gpus,
                fixed=choice.binding,
                last=job.running_on,
                running=True,
                pinned=True,
                binding=choice.binding,
            )
            book.placed[job.id] = member
            book.add_member(member)
            planning.assignments[job.id] = Assignment(run=True, gpus=choice.binding, binding=choice.binding)
            planning.reasons[job.id] = STAGE_WORDS[choice.stage]
        for name in choice.nodes:
            if name not in book.fleet.affinity:
                book.fleet.set_affinity(name, job.gpus)
                book.room_coming = True
        if job.memory_per_node_bytes:
            # Words about others may change.
            book.room_coming = True

    def _why_queued(self, planning: _Planning, job: Job) -> str:
        """One sentence for a job that no server takes."""
        fleet = planning.book.fleet
        nodes = job.request.nodes or 1
        share = -(-job.gpus // nodes)
        words: set[str] = set()
        for server in fleet.servers.values():
            reason = refusal(job, server, share)
            if reason is None:
                break
            words.add(reason)
        else:
            part = "its" if share == job.gpus else f"{share} of its"
            gpus = "GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
            return f"no server can take {part} {gpus}: " + "; ".join(sorted(words)[:3])
        if job.gpus in fleet.affinity.values():
            return f"no server has {share} free GPUs, and those shared by {job.gpus}-GPU jobs are full"
        return f"no server has {share} free GPUs, and no {job.gpus}-GPU job is there to take turns with"

    # -- turns ---------------------------------------------------------------------------------------

    def _take_turns(self, planning: _Planning) -> None:
        book, now = planning.book, planning.snapshot.time
        seen: set[str] = set()
        due: list[tuple[float, str, _Domain | None]] = []
        for name in sorted(book.dirty):
            if name in seen:
                continue
            domain = self._look_at(planning, book.domain(name))
            seen.update(domain.names)
            for other in domain.names:
                book.boundaries.pop(other, None)
            if not domain.members:
                if book.slice_start.pop(name, None) is not None:
                    book.slice_start_changed = True
            elif self._outranked(domain):
                # For as long as it is so: at every look.
                book.unsettled.update(domain.names)
                self._give_turns(planning, domain, rotate=True)
            elif domain.some_wait and now >= domain.start + self._settings.slice_seconds:
                due.append((domain.start + self._settings.slice_seconds, domain.names[0], domain))
            else:
                self._give_turns(planning, domain, rotate=False)
        book.dirty.clear()
        over = [(time, name) for name, time in book.boundaries.items() if time <= now and name not in seen]
        due += [(time, name, None) for time, name in over]
        portion = 0
        for _, name, known in sorted(due, key=lambda item: item[:2]):
            if portion < _PORTION_JOBS:
                domain = known or self._look_at(planning, book.domain(name))
                portion += len(domain.members)
                self._give_turns(planning, domain, rotate=True)
            elif known is not None:
                self._give_turns(planning, known, rotate=False)

    def _look_at(self, planning: _Planning, names: tuple[str, ...]) -> _Domain:
        book, now = planning.book, planning.snapshot.time
        if len(names) == 1:
            ids: Iterable[JobId] = book.on.get(names[0], ())
        else:
            ids = {job_id for name in names for job_id in book.on.get(name, ())}
        members = [book.members[job_id] for job_id in ids]
        self._bring_up_to_date(planning, members)
        servers = book.fleet.servers
        usable = {n: servers[n].usable_gpus for n in names if n in servers}
        start = max((book.slice_start[n] for n in names if n in book.slice_start), default=now)
        if book.busy and any(member.job_id in book.busy for member in members):
            # A slice begins when the switch is over, else slow switches would eat the next job's time.
            start = now
        return _Domain(names, members, usable, start, choose(members, usable, rotate=False))

    def _bring_up_to_date(self, planning: _Planning, members: list[Member]) -> None:
        """What each has received so far. A newcomer starts level with the peer that has received least (SPEC
        1.3)."""
        book, now = planning.book, planning.snapshot.time
        newcomers: list[Member] = []
        level: float | None = None
        for member in members:
            account = book.service.get(member.job_id)
            if account is None:
                newcomers.append(member)
                continue
            received = member.received = account.at(book.jobs[member.job_id].run_seconds_at(now))
            if level is None or received < level:
                level = received
        for member in newcomers:
            job = book.jobs[member.job_id]
            member.received = level or 0.0
            book.service[member.job_id] = Service(
                member.received, job.run_seconds_at(now), job.request.weight
            )
            book.service_changed = True

    def _outranked(self, domain: _Domain) -> bool:
        """Whether somebody waits for GPUs of a job of a lower class."""
        if not domain.some_wait:
            return False
        kept = {member.job_id for member in domain.going_on}
        highest = max(m.priority_class for m in domain.members if m.job_id not in kept)
        return any(m.running and not m.pinned and m.priority_class < highest for m in domain.members)

    def _give_turns(self, planning: _Planning, domain: _Domain, *, rotate: bool) -> None:
        book, now = planning.book, planning.snapshot.time
        chosen = choose(domain.members, domain.usable, rotate=True) if rotate else domain.going_on
        start = now if rotate else domain.start
        for name in domain.names:
            if book.slice_start.get(name) != start:
                book.slice_start[name] = start
                book.slice_start_changed = True
        if domain.some_wait:
            book.boundaries[domain.names[0]] = start + self._settings.slice_seconds
        else:
            book.boundaries.pop(domain.names[0], None)
        self._assign(planning, domain, chosen, rotate)

    def _assign(self, planning: _Planning, domain: _Domain, chosen: list[Member], rotate: bool) -> None:
        book, assignments, reasons = planning.book, planning.assignments, planning.reasons
        located = locate(chosen, domain.usable)
        settled = True
        for member in chosen:
            job_id = member.job_id
            planning.changed.add(job_id)
            if job_id in book.placed:
                # By this plan (and said so already).
                continue
            gpus = located[job_id]
            assignments[job_id] = Assignment(run=True, gpus=gpus, binding=member.binding)
            if gpus != member.last:
                settled = False
            if not member.running:
                settled = False
                reasons[job_id] = self._turn_words(member, "its turn")
                if job_id in book.seats:
                    book.drop_seat(job_id)
                    book.seated.remove(job_id)
                    book.placed[job_id] = member
        if len(chosen) < len(domain.members):
            running = {member.job_id for member in chosen}
            waiting = sorted((m for m in domain.members if m.job_id not in running), key=lambda m: m.turn)
            for place, member in enumerate(waiting, start=1):
                job_id = member.job_id
                planning.changed.add(job_id)
                line = f"{place} of {len(waiting)} in line"
                seat = book.seats.get(job_id)
                if seat is not None:
                    where = ",".join(seat.nodes)
                    reasons[job_id] = f"no GPU is free: first turn on {where}, {line}"
                    continue
                assignments[job_id] = Assignment(run=False, gpus=member.last, binding=member.binding)
                words = "waits for its turn"
                if member.running:
                    settled = False
                    words = "slice over" if rotate else words
                reasons[job_id] = self._turn_words(member, f"{words}, {line}")
        if not settled:
            book.unsettled.update(domain.names)

    def _turn_words(self, member: Member, words: str) -> str:
        slices = member.received / self._settings.slice_seconds
        return f"{words} ({slices:.2f} slices per weight received)"
