# SPDX-License-Identifier: GPL-2.0-or-later
"""A cluster on which much goes wrong: plans are carried out in part, late or not at all.

Each plan from what changed is compared with one made from nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.model import (
    ALL_CHANGED,
    NOWHERE,
    Changes,
    Configuration,
    GpuId,
    Job,
    JobId,
    Memory,
    Node,
    Note,
    Phase,
    Placement,
    Plan,
    Problem,
    Profile,
    Rate,
    Reason,
    Size,
    Snapshot,
    Solution,
    StateAt,
    Target,
    Usage,
    gpu_type,
    reason_of,
)
from controller.policies.allocations.worker import answers
from controller.policies.protocol import Policy
from controller.solver import ImmediateSolver
from tests.unit.policies.ideal import GIB, make_job, make_node, running, suspended

SIZES = [(1, 1), (1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (4, 2), (8, 2), (2, None), (8, None)]
MODELS = {
    "vgg": Profile(state_bytes=10, largest_tensor_bytes=7, peak_memory_bytes=30 * GIB),
    "resnet": Profile(peak_memory_bytes=35 * GIB),
}
RATES = {
    model: {Configuration("a100", gpus, nodes): Rate(10.0) for gpus, nodes in SIZES if nodes is not None}
    for model in MODELS
}


@dataclass
class Trouble:
    """Turn by turn something happens, a plan is made and compared, and a part of it is carried out."""

    rng: random.Random
    make: Callable[[], Policy]
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    usage: dict[JobId, Usage] = field(default_factory=dict)
    profiles: dict[JobId, Profile] = field(default_factory=dict)
    notes: dict[JobId, Note] = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    named: set[JobId] = field(default_factory=set)
    """Jobs that the last plan names."""
    solver: ImmediateSolver = field(default_factory=lambda: ImmediateSolver(answers))
    stated: dict[str, Problem] = field(default_factory=dict)
    solutions: dict[str, Solution] = field(default_factory=dict)
    solved: set[str] = field(default_factory=set)
    """Names of problems that were solved since the last plan."""
    seen: Snapshot | None = None
    now: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        for name, gpus in (("n1", 4), ("n2", 4), ("n10", 4), ("n3", 2)):
            self.nodes[name] = make_node(name, gpus, shards=6, memory_free_bytes=64 * GIB)
        self.policy = self.make()

    def turn(self) -> None:
        """One of them."""
        self.now += self.rng.choice([0.0, 0.5, 3.0, 8.0, 11.0])
        self.proceed()
        for _ in range(self.rng.randint(0, 3)):
            self.rng.choice([self.arrive, self.arrive, self.leave, self.upset, self.node])()
        self.solve()
        snapshot = self.snapshot()
        memory = Memory(dict(self.common), dict(self.notes))
        plan = self.policy.plan(snapshot, memory)
        self.compare(snapshot, memory, plan)
        self.check(plan)
        self.seen, self.named, self.solved = snapshot, set(plan.targets), set()
        self.stated.update(plan.problems)
        self.remember(plan)
        for job_id, target in sorted(plan.targets.items(), key=lambda item: bool(item[1].placement.gpus)):
            if self.rng.random() < 0.8 and self.gpus_are_free(job_id, target):
                self.carry_out(job_id, target)

    def snapshot(self) -> Snapshot:
        self.see_sharing()
        for job_id, job in list(self.jobs.items()):
            size = job.request.size
            may_resize = size.most > size.wanted and job.may_stop and bool(job.placement.gpus)
            if may_resize != job.may_resize:
                self.put(job_id, may_resize=may_resize)
        changed = ALL_CHANGED
        if self.seen is not None:
            jobs = {i for i in {*self.seen.jobs, *self.jobs} if self.differs(i)} | self.named
            nodes = {n for n, node in self.nodes.items() if node is not self.seen.nodes[n]}
            changed = Changes(frozenset(jobs), frozenset(nodes), frozenset(self.solved))
        return Snapshot(
            time=self.now,
            nodes=dict(self.nodes),
            jobs=dict(self.jobs),
            usage=dict(self.usage),
            profiles=dict(self.profiles),
            solutions=dict(self.solutions),
            rates=RATES,
            job_rates=self.rates_now(),
            changed=changed,
        )

    def rates_now(self) -> dict[JobId, Rate]:
        """Of some jobs on their GPUs; most go nearly as fast beside another one as alone."""
        on = [job_id for job_id, job in self.jobs.items() if job.placement.gpus]
        return {job_id: Rate(self.rng.choice([3.0, 8.0, 10.0])) for job_id in on if self.rng.random() < 0.7}

    def see_sharing(self) -> None:
        """Who is on the same GPUs at the same time."""
        on: dict[GpuId, set[JobId]] = {}
        for job_id, job in self.jobs.items():
            for gpu in frozenset() if job.leaving else job.placement.gpus:
                on.setdefault(gpu, set()).add(job_id)
        for job_id, job in list(self.jobs.items()):
            gpus = frozenset() if job.leaving else job.placement.gpus
            others = frozenset().union(*(on[gpu] for gpu in gpus)) - {job_id}
            if others != job.placement.shares_with:
                self.put(job_id, placement=replace(job.placement, shares_with=others))

    def differs(self, job_id: JobId) -> bool:
        assert self.seen is not None
        return (
            self.seen.jobs.get(job_id) != self.jobs.get(job_id)
            or self.seen.usage.get(job_id) != self.usage.get(job_id)
            or self.seen.profiles.get(job_id) != self.profiles.get(job_id)
        )

    def compare(self, snapshot: Snapshot, memory: Memory, plan: Plan) -> None:
        fresh = self.make().plan(replace(snapshot, changed=ALL_CHANGED), memory)
        assert dict(plan.targets) == dict(fresh.targets)
        assert plan.wake_at == pytest.approx(fresh.wake_at, abs=1e-5)
        mine, other = ({**self.notes, **p.memory.jobs} for p in (plan, fresh))
        for job_id in self.jobs:
            assert note(mine.get(job_id)) == note(other.get(job_id))
        moves, fresh_moves = ({**self.common, **p.memory.common}.get("moves") or {} for p in (plan, fresh))
        assert json.dumps(moves, sort_keys=True) == json.dumps(fresh_moves, sort_keys=True)
        said = {**self.reasons, **plan.reasons}
        for job_id, words in fresh.reasons.items():
            assert said.get(job_id) == words, self.jobs[job_id]
            assert reason_of(said[job_id]) is reason_of(words) is not Reason.OTHER, words

    def check(self, plan: Plan) -> None:
        """It asks for what can be done only."""
        for job_id, target in plan.targets.items():
            job, after = self.jobs[job_id], target.placement
            before = job.placement
            if before.gpus:
                assert before.gpus == after.gpus or job.may_stop, (job, after)
                moves = after.gpus and after.gpus != before.gpus
                assert not moves or job.may_move or target.keep is StateAt.STORE, (job, after)
            elif after.gpus:
                assert job.may_start, (job, after)
            if after.gpus:
                assert after.gpus <= after.allocation, (job, after)
                size = job.request.size
                resized = len(after.gpus) != (len(before.gpus) or job.promised_size or size.wanted)
                if target.keep is StateAt.STORE:
                    assert job.may_resize if resized else job.may_migrate, (job, after)
                    assert not resized or size.wanted <= len(after.gpus) <= size.most, (job, after)
                else:
                    assert not resized or len(after.gpus) == size.wanted, (job, after)
                    assert not before.allocation or after.allocation == before.allocation, (job, after)
            if after.gpus - before.gpus:
                for gpu in after.gpus:
                    card = self.nodes[gpu.node].gpus[gpu.ordinal]
                    assert card.usable, (job, after)
                    assert self.nodes[gpu.node].available or before.allocation, (job, after)
        on: dict[GpuId, set[JobId]] = {}
        for job_id, job in self.jobs.items():
            if job_id in plan.targets or not job.leaving:
                for gpu in self.after(plan, job_id).gpus:
                    on.setdefault(gpu, set()).add(job_id)
        for gpu, job_ids in on.items():
            new = [i for i in job_ids if i in plan.targets and gpu not in self.jobs[i].placement.gpus]
            assert len(job_ids) == 1 or not new or self.allowed(plan, job_ids), (gpu, job_ids, plan.targets)

    def after(self, plan: Plan, job_id: JobId) -> Placement:
        """What a job has once the plan is carried out."""
        target = plan.targets.get(job_id)
        return self.jobs[job_id].placement if target is None else target.placement

    def allowed(self, plan: Plan, job_ids: set[JobId]) -> bool:
        """To be on one GPU together."""
        for job_id in job_ids:
            shares_with = self.after(plan, job_id).shares_with
            if not self.jobs[job_id].request.may_pack or shares_with != job_ids - {job_id}:
                return False
        peaks = [self.profiles[job_id].peak_memory_bytes for job_id in job_ids]
        return len(job_ids) == 2 and sum(peaks) <= 80 * GIB

    def remember(self, plan: Plan) -> None:
        self.notes |= json_notes(plan)
        self.notes = {job_id: found for job_id, found in self.notes.items() if found is not None}
        self.common |= json.loads(json.dumps(dict(plan.memory.common)))
        self.reasons |= plan.reasons

    # -- what becomes of plans --------------------------------------------------------------------------

    def gpus_are_free(self, job_id: JobId, target: Target) -> bool:
        """No job is there but those that are to be."""
        others = self.jobs.keys() - target.placement.shares_with - {job_id}
        return all(self.jobs[i].placement.gpus.isdisjoint(target.placement.gpus) for i in others)

    def carry_out(self, job_id: JobId, target: Target) -> None:
        job, gpus = self.jobs[job_id], target.placement.gpus
        slow = self.rng.random() < 0.3
        if gpus and target.keep is StateAt.STORE:
            promised = target.placement.allocation
            size = len(gpus) if len(gpus) != job.request.size.wanted else 0
            self.put(job_id, leaving=True, switching=True, promised=promised, promised_size=size)
            # As of any job under way; one that is suspended could start else.
            self.put(job_id, may_stop=False, may_start=False, may_migrate=False)
        elif gpus:
            self.jobs[job_id] = replace(running(job, gpus), placement=target.placement)
            if slow:
                self.put(job_id, phase=Phase.STARTING, may_stop=False, switching=True)
            if job.start_time is None:
                self.put(job_id, start_time=self.now)
        elif not job.placement.gpus:
            self.put(job_id, promised=target.placement.allocation, promised_size=0)
        elif slow:
            self.put(job_id, leaving=True, switching=True, may_stop=False)
        else:
            self.stop(job_id)
        self.account(job_id)

    def proceed(self) -> None:
        """Operations that take long come to their end, some time."""
        for job_id, job in list(self.jobs.items()):
            if job.held_until is not None and job.held_until <= self.now:
                self.put(job_id, held_until=None, may_start=job.phase is not Phase.INELIGIBLE)
            if job.switching and self.rng.random() < 0.6:
                self.put(job_id, switching=False)
                if job.leaving:
                    self.stop(job_id)
                elif job.phase is Phase.STARTING:
                    self.put(job_id, phase=Phase.RUNNING, may_stop=True)
            self.account(job_id)

    def stop(self, job_id: JobId) -> None:
        """Suspended, or requeued."""
        job = replace(self.jobs[job_id], leaving=False, switching=False)
        if job.promised and not job.may_start:
            self.jobs[job_id] = replace(
                job, phase=Phase.QUEUED, placement=NOWHERE, last=frozenset(), may_start=True, may_stop=False
            )
        elif self.rng.random() < 0.8 and job.gpus == job.request.size.wanted:
            placement = Placement(frozenset(), job.placement.allocation)
            self.jobs[job_id] = replace(suspended(job, placement.allocation), last=job.placement.gpus)
        else:
            self.jobs[job_id] = replace(
                job, phase=Phase.QUEUED, placement=NOWHERE, last=frozenset(), may_start=True, may_stop=False
            )

    def account(self, job_id: JobId) -> None:
        job, usage = self.jobs[job_id], self.usage.get(job_id, Usage())
        if bool(job.placement.gpus) != (usage.since is not None):
            where = gpu_type(job.placement.gpus, self.nodes)
            usage = usage.started(self.now, job.gpus, where) if where else usage.stopped(self.now)
        elif usage.since is not None and self.rng.random() < 0.02:
            # The agents know better.
            seconds = max(0.0, usage.seconds + self.rng.choice([-2.0, 3.0, 100.0]))
            usage = replace(usage, seconds=seconds, gpu_seconds=seconds * usage.gpus)
        self.usage[job_id] = usage

    # -- what happens besides ---------------------------------------------------------------------------

    def put(self, job_id: JobId, **changes: Any) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **changes)

    def arrive(self) -> None:
        for _ in range(self.rng.choice([1, 1, 5])):
            self.number += 1
            gpus, nodes = self.rng.choice(SIZES)
            model = self.rng.choice([None, "vgg", "resnet"])
            job = make_job(
                self.number,
                gpus,
                self.rng.choice([None, 10.0, 60.0]),
                nodes=nodes,
                submit=self.now,
                weight=self.rng.choice([0.5, 1.0, 4.0]),
                model=model,
                may_move=self.rng.random() < 0.8,
                may_migrate=self.rng.random() < 0.5,
                priority_class=self.rng.choice([0, 0, 0, 0, 1]),
                memory_per_node_bytes=self.rng.choice([0, 0, 8 * GIB]),
                required_nodes=self.rng.choice([frozenset(), frozenset(), frozenset({"n3", "n10"})]),
            )
            may_pack = self.rng.choice([False, False, True, True])
            most = gpus * self.rng.choice([1, 1, 2, 4]) if nodes in (None, 1) else gpus
            request = replace(job.request, may_pack=may_pack, size=Size(gpus, gpus, most))
            self.jobs[job.id] = replace(job, request=request)
            if model is not None:
                self.profiles[job.id] = MODELS[model]
            if self.rng.random() < 0.2:
                self.put(job.id, may_start=False, held_until=self.now + 4)

    def solve(self) -> None:
        """What plans stated is solved some time."""
        if self.stated and self.rng.random() < 0.6:
            for name, problem in self.stated.items():
                self.solver.submit(name, problem, lambda: None)
            found = self.solver.take()
            self.stated, self.solved = {}, set(found)
            self.solutions.update(found)

    def leave(self) -> None:
        if not self.jobs:
            return
        job_id = self.rng.choice(sorted(self.jobs))
        del self.jobs[job_id]
        if self.usage.get(job_id, Usage()).since is not None:
            self.usage[job_id] = self.usage[job_id].stopped(self.now)

    def upset(self) -> None:
        """One job is not where it was thought to be."""
        if not self.jobs:
            return
        job_id = self.rng.choice(sorted(self.jobs))
        job = self.jobs[job_id]
        on = bool(job.placement.gpus)
        match self.rng.randint(0, 6):
            case 0 if job.placement.allocation:
                self.stop(job_id)
            case 1 if on:
                phase = self.rng.choice([Phase.STUCK, Phase.UNKNOWN, Phase.RUNNING])
                self.put(job_id, phase=phase, may_stop=phase is Phase.RUNNING, leaving=False, switching=False)
                # What is promised to a job that does not leave any more is not shown.
                self.put(job_id, promised=frozenset(), promised_size=0)
            case 2 if on:
                self.put(job_id, may_stop=not job.may_stop)
            case 3 if not job.placement.allocation:
                phase = Phase.INELIGIBLE if job.phase is Phase.QUEUED else Phase.QUEUED
                self.put(job_id, phase=phase, may_start=phase is Phase.QUEUED, held_until=None)
            case 4:
                self.put(job_id, request=replace(job.request, weight=2.0))
            case 5 if on:
                self.put(job_id, keeps_until=self.now + self.rng.choice([0.0, 2.0, 9.0]))
            case 6 if job.request.model == "resnet":
                peak = self.rng.choice([10, 35, 60]) * GIB
                self.profiles[job_id] = replace(self.profiles[job_id], peak_memory_bytes=peak)

    def node(self) -> None:
        """A node changes what it offers, or another job takes its memory."""
        node = self.nodes[self.rng.choice(sorted(self.nodes))]
        match self.rng.randint(0, 3):
            case 0:
                node = replace(node, available=not node.available, reason="down")
            case 1:
                card = node.gpus[0]
                node = replace(node, gpus=(replace(card, healthy=not card.healthy), *node.gpus[1:]))
            case _:
                node = replace(node, memory_free_bytes=self.rng.choice([8, 24, 64]) * GIB)
        self.nodes[node.name] = node


def json_notes(plan: Plan) -> dict[JobId, Note]:
    return {
        job_id: None if found is None else tuple(json.loads(json.dumps(found)))
        for job_id, found in plan.memory.jobs.items()
    }


def note(found: Note) -> Note:
    """As it can be compared: sums of floating-point times differ in the last digits."""
    return None if found is None else tuple(round(v, 4) if isinstance(v, float) else v for v in found)
