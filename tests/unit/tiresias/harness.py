# SPDX-License-Identifier: GPL-2.0-or-later
"""An ideal cluster in which jobs arrive, run for their durations and end; preempted jobs requeue for free.

Time jumps from event to event. Every step hands the policy what changed, and compares its plan with those of
a second object of the same policy that sees the snapshot for the first time; and so it does with an object
that sees all jobs anew each time and must find by itself what changed, as in the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.model import Changes, GpuSet, Job, JobId, Node, Phase, Plan, Request, Snapshot
from controller.policies.base import Policy
from tests.unit.policies.harness import check_exclusive, make_node


def job(number: int, gpus: int, duration: float, *, submit: float = 0.0, **changes: Any) -> Job:
    request = Request(gpus=gpus, nodes=changes.pop("nodes", None))
    made = Job(JobId(number), "alice", request, Phase.QUEUED, submit, duration_seconds=duration)
    return replace(made, **changes)


@dataclass
class Timeline:
    """Everything that happened."""

    runs: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    preemptions: int = 0
    order: list[frozenset[int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def jct(self, jobs: Iterable[Job]) -> list[float]:
        return [self.ends[int(j.id)] - j.submit_time for j in jobs]


class Ideal:
    """Runs jobs under a policy."""

    def __init__(self, make: Callable[[], Policy], nodes: Iterable[Node], jobs: Iterable[Job]) -> None:
        self.make = make
        self.policy, self.untold = make(), make()
        self.untold_state: Mapping[str, Any] = {}
        self.nodes = {node.name: node for node in nodes}
        self.arrivals = sorted(jobs, key=lambda j: (j.submit_time, j.id))
        self.jobs: dict[JobId, Job] = {}
        self.since: dict[JobId, float] = {}
        self.state: Mapping[str, Any] = {}
        self.now = 0.0
        self.serial = 0
        self.timeline = Timeline()
        self.on_plan: Callable[[Snapshot, Plan], None] = lambda _snapshot, _plan: None

    def run(self, limit: int = 100000) -> Timeline:
        changed: set[JobId] = set()
        for _ in range(limit):
            changed |= self._events()
            if not self.arrivals and not self.jobs:
                return self.timeline
            wake = self._plan(changed)
            changed = set()
            moments = [j.submit_time for j in self.arrivals[:1]]
            moments += [self._end_of(i) for i in self.since]
            if wake is not None:
                moments.append(max(wake, self.now))
            self.now = min(moments)
        raise AssertionError("the jobs do not end")

    def _end_of(self, job_id: JobId) -> float:
        job = self.jobs[job_id]
        assert job.duration_seconds is not None
        return self.since[job_id] + job.duration_seconds - job.run_seconds

    def _events(self) -> set[JobId]:
        changed: set[JobId] = set()
        for job_id in [i for i in self.since if self._end_of(i) <= self.now + 1e-9]:
            self._stop(job_id)
            self.timeline.ends[int(job_id)] = self.now
            del self.jobs[job_id]
            changed.add(job_id)
        while self.arrivals and self.arrivals[0].submit_time <= self.now:
            arrived = self.arrivals.pop(0)
            self.jobs[arrived.id] = arrived
            changed.add(arrived.id)
        return changed

    def _stop(self, job_id: JobId) -> None:
        begin, job = self.since.pop(job_id), self.jobs[job_id]
        ran = job.run_seconds + self.now - begin
        self.timeline.runs.setdefault(int(job_id), []).append((begin, self.now))
        self.jobs[job_id] = replace(
            job,
            phase=Phase.QUEUED,
            run_seconds=ran,
            gpu_seconds=ran * job.gpus,
            accrues_since=None,
            binding=frozenset(),
            running_on=frozenset(),
        )

    def _start(self, job_id: JobId, gpus: GpuSet) -> None:
        self.since[job_id] = self.now
        job = self.jobs[job_id]
        start = self.now if job.start_time is None else job.start_time
        self.jobs[job_id] = replace(
            job, phase=Phase.RUNNING, binding=gpus, running_on=gpus, accrues_since=self.now, start_time=start
        )

    def _plan(self, changed: set[JobId]) -> float | None:
        """Plan and apply until nothing changes any more."""
        for _ in range(40):
            self.serial += 1
            changes = Changes(self.serial - 1, frozenset(changed), frozenset())
            snapshot = Snapshot(self.now, self.nodes, dict(self.jobs), serial=self.serial, changes=changes)
            again = self.make().plan(replace(snapshot, changes=None), self.state)
            plan = self.policy.plan(snapshot, self.state)
            assert dict(plan.assignments) == dict(again.assignments)
            assert dict(plan.reasons) == dict(again.reasons)
            self._plan_untold(snapshot)
            self.on_plan(snapshot, plan)
            self.state = plan.state
            changed = set()
            for job_id, assignment in plan.assignments.items():
                if not assignment.run and job_id in self.since:
                    self._stop(job_id)
                    self.timeline.preemptions += 1
                    changed.add(job_id)
            for job_id, assignment in plan.assignments.items():
                if assignment.run and job_id not in self.since:
                    self._start(job_id, assignment.gpus)
                    changed.add(job_id)
            check_exclusive(self.jobs.values())
            if not changed:
                break
        else:
            raise AssertionError("the plans do not come to rest")
        self.timeline.times.append(self.now)
        self.timeline.order.append(frozenset(int(i) for i in self.since))
        return plan.wake_at

    def _plan_untold(self, told: Snapshot) -> None:
        jobs = {
            i: replace(
                job,
                run_seconds=job.run_seconds_at(self.now),
                gpu_seconds=job.gpu_seconds_at(self.now),
                accrues_since=None,
            )
            for i, job in told.jobs.items()
        }
        snapshot = Snapshot(self.now, self.nodes, jobs)
        again = self.make().plan(snapshot, self.untold_state)
        untold = self.untold.plan(snapshot, self.untold_state)
        json.dumps(dict(untold.state))
        assert (untold.changed is None) == (not self.untold_state), "it is kept from the second plan on"
        assert dict(untold.assignments) == dict(again.assignments)
        assert dict(untold.reasons) == dict(again.reasons)
        assert untold.wake_at == pytest.approx(again.wake_at, abs=1e-5)
        self.untold_state = untold.state


def cluster(nodes: int, gpus: int) -> list[Node]:
    return [make_node(f"n{i + 1}", gpus) for i in range(nodes)]
