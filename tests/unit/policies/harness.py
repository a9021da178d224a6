# SPDX-License-Identifier: GPL-2.0-or-later
"""An ideal cluster for policy tests: plans take effect at once and exactly.

Shared by the tests of all policies; knows no policy by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.model import Gpu, GpuId, GpuSet, Job, JobId, Node, Phase, Plan, Request, Snapshot
from controller.policies.base import Policy

GIB = 1024**3


def make_node(name: str, gpus: int, model: str = "a100", shards: int = 64, **changes: Any) -> Node:
    cards = tuple(
        Gpu(GpuId(name, i), model, memory_bytes=80 * GIB, memory_used_bytes=0, shards=shards)
        for i in range(gpus)
    )
    return replace(Node(name=name, gpus=cards), **changes)


def make_job(number: int, gpus: int = 1, *, weight: float = 1.0, submit: float = 0.0, **changes: Any) -> Job:
    nodes = changes.pop("nodes", 1)
    job = Job(
        id=JobId(number),
        user="alice",
        request=Request(gpus=gpus, nodes=nodes, weight=weight),
        phase=Phase.QUEUED,
        submit_time=submit,
        movable=True,
    )
    return replace(job, **changes)


@dataclass
class IdealCluster:
    """Carries out plans instantly; jobs run for ever unless removed."""

    policy: Policy
    nodes: dict[str, Node]
    jobs: dict[JobId, Job] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    plan: Plan | None = None

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.jobs[job.id] = job

    def end(self, *numbers: int) -> None:
        for number in numbers:
            del self.jobs[JobId(number)]

    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, dict(self.nodes), dict(self.jobs))

    def step(self) -> Plan:
        """Plan once and apply; a job that must move is stopped and started in one go."""
        plan = self.policy.plan(self.snapshot(), self.state)
        self.state, self.plan = plan.state, plan
        for job_id, assignment in plan.assignments.items():
            job = self.jobs[job_id]
            if assignment.run:
                self.jobs[job_id] = replace(
                    job, phase=Phase.RUNNING, binding=assignment.binding, running_on=assignment.gpus
                )
            elif job.phase is Phase.RUNNING:
                self.jobs[job_id] = replace(job, phase=Phase.SUSPENDED)
        check_exclusive(self.jobs.values())
        return plan

    def advance(self, seconds: float) -> None:
        """Let time pass and charge what ran."""
        self.now += seconds
        for job_id, job in self.jobs.items():
            if job.phase is Phase.RUNNING:
                ran = job.run_seconds + seconds
                self.jobs[job_id] = replace(job, run_seconds=ran, gpu_seconds=ran * job.gpus)

    def running(self) -> set[int]:
        return {int(j.id) for j in self.jobs.values() if j.phase is Phase.RUNNING}

    def run_slices(self, count: int, seconds: float = 60.0) -> list[set[int]]:
        """Which jobs ran in each of `count` slices."""
        history = []
        for _ in range(count):
            self.step()
            history.append(self.running())
            self.advance(seconds)
        return history


def check_exclusive(jobs: Iterable[Job]) -> None:
    """No GPU runs two jobs, and every gang is whole and inside its binding."""
    owner: dict[GpuId, JobId] = {}
    for job in jobs:
        if job.phase is not Phase.RUNNING:
            continue
        assert len(job.running_on) == job.gpus, f"job {job.id} runs on {sorted(job.running_on)}"
        assert job.running_on <= job.binding
        for gpu in job.running_on:
            assert gpu not in owner, f"jobs {owner[gpu]} and {job.id} both run on {gpu}"
            owner[gpu] = job.id


def gpu_set(*names: str) -> GpuSet:
    """`gpu_set("n1:0", "n1:1")`."""
    return frozenset(GpuId(n.split(":")[0], int(n.split(":")[1])) for n in names)
