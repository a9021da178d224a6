# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan from what the policy object has kept equals the plan of a new object, whatever happened before."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import Changes, Job, JobId, Node, Phase, Plan, Snapshot
from controller.policies.base import Policy
from controller.policies.gandiva import Gandiva, GandivaSettings, policy
from tests.unit.policies.harness import GIB, make_job, make_node

_SIZES = [(1, 1), (1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (4, 2), (8, 2), (2, None), (8, None)]
Oracle = Callable[[Snapshot, Mapping[str, Any], Plan], None]


@dataclass
class Trouble:
    """A cluster on which much goes wrong: plans are carried out in part, late or not at all."""

    rng: random.Random
    told: bool
    """The snapshots say what changed."""
    oracle: Oracle = lambda _snapshot, _state, _plan: None
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    busy: frozenset[JobId] = frozenset()
    now: float = 0.0
    serial: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        for name, gpus in (("n1", 4), ("n2", 4), ("n10", 4), ("n3", 2)):
            self.nodes[name] = make_node(name, gpus, shards=6, memory_free_bytes=64 * GIB)
        self.policy = self.make()
        self.state: Mapping[str, Any] = {}
        self.last: Plan | None = None
        self.seen: tuple[dict[JobId, Job], dict[str, Node], frozenset[JobId]] = ({}, {}, frozenset())

    def make(self) -> Policy:
        return Gandiva(GandivaSettings(slice_seconds=8.0, max_jobs_per_gpu=3))

    def turn(self) -> None:
        """Something happens, then a plan is made and compared."""
        self.now += self.rng.choice([0.0, 0.5, 3.0, 8.0, 11.0])
        for _ in range(self.rng.randint(0, 3)):
            self.rng.choice([self.arrive, self.arrive, self.leave, self.upset, self.node])()
        self.busy = frozenset(i for i in self.jobs if self.rng.random() < 0.1)
        old_jobs, old_nodes, old_busy = self.seen
        self.seen = dict(self.jobs), dict(self.nodes), self.busy
        changes = None
        if self.told:
            changed = {i for i in {*old_jobs, *self.jobs} if old_jobs.get(i) is not self.jobs.get(i)}
            nodes = {n for n in {*old_nodes, *self.nodes} if old_nodes.get(n) is not self.nodes.get(n)}
            changes = Changes(self.serial, frozenset(changed) | old_busy | self.busy, frozenset(nodes))
        self.serial += 1
        jobs = dict(self.jobs)
        if not self.told:
            # Nobody keeps times for us: they are in each job.
            jobs = {i: self.grown(job) for i, job in jobs.items()}
        snapshot = Snapshot(self.now, dict(self.nodes), jobs, self.busy, self.serial, changes)
        fresh = self.make().plan(replace(snapshot, changes=None), self.state)
        self.oracle(snapshot, self.state, fresh)
        plan = self.policy.plan(snapshot, self.state)
        assert dict(plan.assignments) == dict(fresh.assignments)
        assert dict(plan.reasons) == dict(fresh.reasons)
        self.compare_memory(plan, fresh)
        if plan.changed is not None:
            self.check_changed(plan)
        self.last, self.state = plan, plan.state
        self.carry_out(plan)

    def compare_memory(self, plan: Plan, fresh: Plan) -> None:
        assert dict(plan.state) == dict(fresh.state)
        assert plan.wake_at == fresh.wake_at

    def check_changed(self, plan: Plan) -> None:
        """Whatever differs from the last plan is said to."""
        assert self.last is not None and plan.changed is not None
        for job_id in {*self.last.assignments, *plan.assignments, *self.last.reasons, *plan.reasons}:
            if job_id not in plan.changed:
                assert self.last.assignments.get(job_id) == plan.assignments.get(job_id)
                assert self.last.reasons.get(job_id) == plan.reasons.get(job_id)

    def carry_out(self, plan: Plan) -> None:
        for job_id, assignment in plan.assignments.items():
            job = self.jobs.get(job_id)
            if job is None or job_id in self.busy or self.rng.random() < 0.2:
                continue
            running = job.phase is Phase.RUNNING
            if assignment.run and (not running or job.running_on != assignment.gpus):
                if job.phase in (Phase.QUEUED, Phase.SUSPENDED, Phase.YIELDED, Phase.RUNNING):
                    where = {"binding": assignment.binding, "running_on": assignment.gpus}
                    self.put(self.grown(job), phase=Phase.RUNNING, accrues_since=self.now, **where)
            elif not assignment.run and running:
                self.put(self.grown(job), phase=Phase.SUSPENDED, accrues_since=None)

    def grown(self, job: Job) -> Job:
        ran = job.run_seconds_at(self.now)
        since = None if job.accrues_since is None else self.now
        return replace(job, run_seconds=ran, gpu_seconds=ran * job.gpus, accrues_since=since)

    def put(self, job: Job, **changes: Any) -> None:
        self.jobs[job.id] = replace(job, **changes)

    def arrive(self) -> None:
        for _ in range(self.rng.choice([1, 1, 5])):
            self.number += 1
            gpus, nodes = self.rng.choice(_SIZES)
            self.jobs[JobId(self.number)] = make_job(
                self.number,
                gpus,
                nodes=nodes,
                submit=self.now,
                weight=self.rng.choice([0.5, 1.0, 4.0]),
                movable=self.rng.random() < 0.8,
                priority_class=self.rng.choice([0, 0, 0, 0, 1]),
                not_before=self.rng.choice([None, None, None, self.now + 4]),
                memory_per_node_bytes=self.rng.choice([0, 0, 8 * GIB]),
                required_nodes=self.rng.choice([frozenset(), frozenset(), frozenset({"n3", "n10"})]),
            )

    def leave(self) -> None:
        if self.jobs:
            del self.jobs[self.rng.choice(sorted(self.jobs))]

    def upset(self) -> None:
        """One job is not where it was thought to be."""
        if not self.jobs:
            return
        job = self.jobs[self.rng.choice(sorted(self.jobs))]
        match self.rng.randint(0, 4):
            case 0 if job.binding:
                empty: dict[str, Any] = {"binding": frozenset(), "running_on": frozenset()}
                self.put(self.grown(job), phase=Phase.QUEUED, accrues_since=None, **empty)
            case 1 if job.binding:
                phase = self.rng.choice([Phase.STUCK, Phase.UNKNOWN, Phase.SUSPENDED])
                self.put(self.grown(job), phase=phase, accrues_since=None)
            case 2:
                self.put(job, suspendable=not job.suspendable)
            case 3 if not job.binding:
                phase = Phase.INELIGIBLE if job.phase is Phase.QUEUED else Phase.QUEUED
                self.put(job, phase=phase)
            case 4:
                self.put(self.grown(job), request=replace(job.request, weight=2.0))

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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), told=st.booleans())
def test_a_kept_book_plans_as_a_new_one(seed: int, told: bool) -> None:
    trouble = Trouble(random.Random(seed), told)
    for _ in range(25):
        trouble.turn()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_when_turns_are_given_in_portions(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "_PORTION_JOBS", 3)
        trouble = Trouble(random.Random(seed), told=True)
        for _ in range(25):
            trouble.turn()
