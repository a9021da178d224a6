# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy itself: place by Algorithm 1, then give every server's GPUs to the jobs in turn."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.model import ALLOCATED, Assignment, GpuId, Job, JobId, Phase, Plan, Snapshot
from controller.policies.gandiva.algorithm1 import STAGE_WORDS, Choice, Stage, get_nodes, settle_affinity
from controller.policies.gandiva.settings import GandivaSettings
from controller.policies.gandiva.slicing import Member, choose, domains, locate
from controller.policies.gandiva.state import Seat, Service, State
from controller.policies.servers import Server, build_servers, by_node, refusal

_PINNED = frozenset({Phase.STARTING, Phase.STUCK, Phase.COMPLETING, Phase.UNKNOWN})


@dataclass(slots=True)
class _Planning:
    """One call of plan(): the input, and the parts of the answer so far."""

    snapshot: Snapshot
    state: State
    servers: dict[str, Server]
    assignments: dict[JobId, Assignment] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    wake_at: float | None = None

    def wake(self, time: float) -> None:
        self.wake_at = time if self.wake_at is None else min(self.wake_at, time)


class Gandiva:
    """Algorithm 1 and weighted fair slicing (OSDI'18, sections 4.1-4.2; SPEC 1.3, 1.8)."""

    name = "gandiva"

    def __init__(self, settings: GandivaSettings | None = None) -> None:
        self._settings = settings or GandivaSettings()

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """Cost: O(jobs log jobs + GPUs), plus O(servers) for each job that is being placed."""
        planning = _Planning(snapshot, State.load(state), build_servers(snapshot))
        self._settle(planning)
        self._place_queue(planning)
        self._take_turns(planning)
        return Plan(planning.assignments, planning.reasons, planning.state, planning.wake_at)

    # -- what changed since the last plan ----------------------------------------------------------

    def _settle(self, planning: _Planning) -> None:
        """Forget jobs that left, charge the service received, keep the seats that still stand."""
        snapshot, state = planning.snapshot, planning.state
        for job_id in [j for j in state.service if JobId(j) not in snapshot.jobs]:
            del state.service[job_id]
        slice_seconds = self._settings.slice_seconds
        for job_id, service in state.service.items():
            job = snapshot.jobs[JobId(job_id)]
            # Measured time, so that the delay of a suspend is charged to the job that caused it.
            ran = job.run_seconds - service.seen_run_seconds
            if ran > 0.0:
                slices = service.slices + ran / (slice_seconds * job.request.weight)
                state.service[job_id] = Service(slices, job.run_seconds)
        seats, state.seats = state.seats, {}
        for job_id, seat in seats.items():
            seated = snapshot.jobs.get(JobId(job_id))
            if seated is not None and self._seat_stands(planning, seated, seat):
                state.seats[job_id] = seat
        gangs = {job.id: job.gpus for job in snapshot.jobs.values()}
        state.affinity = settle_affinity(state.affinity, planning.servers, gangs)

    def _seat_stands(self, planning: _Planning, job: Job, seat: Seat) -> bool:
        """Whether a waiting job keeps its place in the rotation; if so, counts it in."""
        if job.phase is not Phase.QUEUED:
            return False
        share = job.gpus // len(seat.nodes)
        servers = [planning.servers.get(name) for name in seat.nodes]
        present = [s for s in servers if s is not None and refusal(job, s, share) is None]
        if len(present) != len(servers):
            return False
        exact = len(seat.nodes) > 1
        for server in present:
            ordinals = by_node(seat.gpus())[server.node.name] if exact else ()
            server.assign(job.id, share, ordinals, job.memory_per_node_bytes)
        return True

    # -- placement -----------------------------------------------------------------------------------

    def _place_queue(self, planning: _Planning) -> None:
        snapshot, state = planning.snapshot, planning.state
        queue = sorted(
            (j for j in snapshot.jobs.values() if j.phase is Phase.QUEUED and j.id not in snapshot.busy),
            key=lambda j: (-j.priority_class, j.submit_time, j.id),
        )
        # While this plan is made, room only shrinks: what found none will not find any for its likes either.
        # So a queue of thousands costs one search per kind of job.
        hopeless: dict[Hashable, str] = {}
        for job in queue:
            if job.not_before is not None and job.not_before > snapshot.time:
                planning.reasons[job.id] = "could not be started a moment ago; tries again shortly"
                planning.wake(job.not_before)
                continue
            seat = state.seats.pop(job.id, None)
            kind = _kind(job)
            if seat is None and kind in hopeless:
                planning.reasons[job.id] = hopeless[kind]
                continue
            if seat is not None:
                self._leave(planning, job, seat)
            choice = get_nodes(job, planning.servers, state.affinity, self._settings.max_jobs_per_gpu)
            if seat is not None and (choice is None or choice.stage is Stage.OVERSUBSCRIBE):
                # Nothing better has come up: keep the turn it has been waiting for.
                choice = Choice(Stage.OVERSUBSCRIBE, seat.nodes, seat.gpus())
            if choice is None:
                planning.reasons[job.id] = hopeless[kind] = self._why_queued(planning, job)
                continue
            self._enter(planning, job, choice)

    def _enter(self, planning: _Planning, job: Job, choice: Choice) -> None:
        share = job.gpus // len(choice.nodes)
        per_node = by_node(choice.binding)
        for name in choice.nodes:
            exact = () if choice.floating else per_node[name]
            planning.servers[name].assign(job.id, share, exact, job.memory_per_node_bytes)
            planning.state.affinity.setdefault(name, job.gpus)
        if choice.stage is Stage.OVERSUBSCRIBE:
            binding = tuple((g.node, g.ordinal) for g in sorted(choice.binding))
            planning.state.seats[job.id] = Seat(nodes=choice.nodes, binding=binding)
            return
        planning.assignments[job.id] = Assignment(run=True, gpus=choice.binding, binding=choice.binding)
        planning.reasons[job.id] = STAGE_WORDS[choice.stage]

    def _leave(self, planning: _Planning, job: Job, seat: Seat) -> None:
        """Take a seated job out of its servers' counts again."""
        per_node = by_node(seat.gpus())
        for name in seat.nodes:
            server = planning.servers[name]
            server.allocated -= server.members.pop(job.id)
            if len(seat.nodes) > 1:
                server.fixed.subtract(per_node[name])
                server.bound_jobs.subtract(per_node[name])
            else:
                server.bound_jobs.subtract(server.usable)
            if server.memory_free_bytes is not None:
                server.memory_free_bytes += job.memory_per_node_bytes

    def _why_queued(self, planning: _Planning, job: Job) -> str:
        """One sentence for a job that no server takes."""
        nodes = job.request.nodes or 1
        share = -(-job.gpus // nodes)
        refusals = {refusal(job, server, share) for server in planning.servers.values()}
        if None not in refusals:
            words = sorted(reason for reason in refusals if reason)
            return f"no server can take {share} of its {job.gpus} GPUs: " + "; ".join(words[:3])
        if job.gpus in planning.state.affinity.values():
            return f"no server has {share} free GPUs, and those shared by {job.gpus}-GPU jobs are full"
        return f"no server has {share} free GPUs, and no {job.gpus}-GPU job is there to take turns with"

    # -- turns ---------------------------------------------------------------------------------------

    def _take_turns(self, planning: _Planning) -> None:
        snapshot = planning.snapshot
        members: dict[JobId, Job] = {}
        groups: dict[JobId, frozenset[str]] = {}
        for job in snapshot.jobs.values():
            if job.phase in ALLOCATED and job.binding:
                groups[job.id] = frozenset(g.node for g in job.binding)
            elif job.id in planning.state.seats:
                groups[job.id] = frozenset(planning.state.seats[job.id].nodes)
            elif job.id in planning.assignments:
                groups[job.id] = frozenset(g.node for g in planning.assignments[job.id].gpus)
            else:
                continue
            members[job.id] = job
        merged = domains(groups.values())
        domain_of = {name: index for index, names in enumerate(merged) for name in names}
        jobs_of: list[list[Job]] = [[] for _ in merged]
        for job_id, job in members.items():
            jobs_of[domain_of[min(groups[job_id])]].append(job)
        for names, jobs in zip(merged, jobs_of, strict=True):
            self._slice_domain(planning, names, jobs)
        planning.state.slice_start = {
            name: start for name, start in planning.state.slice_start.items() if name in domain_of
        }

    def _slice_domain(self, planning: _Planning, names: frozenset[str], jobs: list[Job]) -> None:
        snapshot, state = planning.snapshot, planning.state
        self._open_accounts(state, jobs)
        usable = {n: frozenset(planning.servers[n].usable) for n in names if n in planning.servers}
        members = [self._member(planning, job) for job in jobs]

        now = snapshot.time
        start = max((state.slice_start[n] for n in names if n in state.slice_start), default=now)
        if any(job.id in snapshot.busy for job in jobs):
            # A slice begins when the switch is over, else slow switches would eat the next job's time.
            start = now
        going_on = choose(members, usable, rotate=False)
        kept = {m.job_id for m in going_on}
        waiting = [m for m in members if m.job_id not in kept]
        rotate = False
        if waiting:
            highest = max(m.priority_class for m in waiting)
            outranked = any(m.running and not m.pinned and m.priority_class < highest for m in members)
            rotate = outranked or now >= start + self._settings.slice_seconds
        chosen = choose(members, usable, rotate=True) if rotate else going_on
        if rotate:
            start = now
        for name in names:
            state.slice_start[name] = start
        if waiting:
            planning.wake(start + self._settings.slice_seconds)
        self._assign(planning, jobs, members, chosen, locate(chosen, usable), rotate)

    def _open_accounts(self, state: State, jobs: list[Job]) -> None:
        """A newcomer starts level with the peer that has received least (SPEC 1.3)."""
        known = [state.service[j.id].slices for j in jobs if j.id in state.service]
        level = min(known, default=0.0)
        for job in jobs:
            if job.id not in state.service:
                state.service[job.id] = Service(level, job.run_seconds)

    def _member(self, planning: _Planning, job: Job) -> Member:
        busy = job.id in planning.snapshot.busy
        running = job.phase is Phase.RUNNING or job.phase in _PINNED
        seat = planning.state.seats.get(job.id)
        planned = planning.assignments.get(job.id)
        fixed: frozenset[GpuId]
        if planned is not None:
            fixed, server, running = planned.gpus, "", True
        elif seat is not None:
            fixed = frozenset() if len(seat.nodes) == 1 else seat.gpus()
            server = seat.nodes[0]
        elif job.floating and (job.movable or not job.running_on) and not (busy or job.phase in _PINNED):
            fixed, server = frozenset(), next(iter(job.binding)).node
        else:
            fixed, server = (job.running_on if job.floating else job.binding), ""
        pinned = job.phase in _PINNED or (running and (busy or not job.suspendable)) or planned is not None
        return Member(
            job_id=job.id,
            priority_class=job.priority_class,
            service_slices=planning.state.service[job.id].slices,
            arrival=(job.submit_time, job.id),
            gpus=job.gpus,
            fixed=fixed,
            server=server,
            last=job.running_on,
            running=running,
            pinned=pinned,
        )

    def _assign(
        self,
        planning: _Planning,
        jobs: list[Job],
        members: list[Member],
        chosen: list[Member],
        located: Mapping[JobId, frozenset[GpuId]],
        rotate: bool,
    ) -> None:
        state = planning.state
        running = {m.job_id for m in chosen}
        turn = {m.job_id: m for m in members}
        waiting = sorted((m for m in members if m.job_id not in running), key=lambda m: m.turn)
        place_in_line = {m.job_id: place for place, m in enumerate(waiting, start=1)}
        for job in jobs:
            if job.id in planning.assignments:
                continue
            seat = state.seats.get(job.id)
            binding = seat.gpus() if seat is not None else job.binding
            if job.id in running:
                if seat is not None:
                    del state.seats[job.id]
                planning.assignments[job.id] = Assignment(run=True, gpus=located[job.id], binding=binding)
                if not turn[job.id].running:
                    planning.reasons[job.id] = self._turn_words(turn[job.id], "its turn")
                continue
            line = f"{place_in_line[job.id]} of {len(waiting)} in line"
            if seat is None:
                planning.assignments[job.id] = Assignment(run=False, gpus=job.running_on, binding=binding)
                words = "slice over" if rotate and turn[job.id].running else "waits for its turn"
                planning.reasons[job.id] = self._turn_words(turn[job.id], f"{words}, {line}")
            else:
                where = ",".join(seat.nodes)
                planning.reasons[job.id] = f"no GPU is free: first turn on {where}, {line}"

    def _turn_words(self, member: Member, words: str) -> str:
        return f"{words} ({member.service_slices:.2f} slices per weight received)"


def _kind(job: Job) -> Hashable:
    """Equal for jobs that fit in the same places."""
    request = job.request
    return (
        request.gpus,
        request.nodes,
        request.gpu_types,
        job.required_nodes,
        job.excluded_nodes,
        job.cpus_per_node,
        job.memory_per_node_bytes,
    )
