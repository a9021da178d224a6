# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm has bound to a node goes on there, also while it is drained; nothing else starts there then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.model import Changes, GpuSet, Job, JobId, Memory, Node, Snapshot, Usage
from controller.policies.allocations.worker import answers
from controller.policies.protocol import Policy
from controller.solver import ImmediateSolver
from tests.unit.policies import ideal
from tests.unit.policies.ideal import cluster, make_job
from tests.unit.policies.presets import POLICIES

SERVICE: dict[JobId, float] = {}
"""Seconds on GPUs, where it is not 10."""


def some(node: Node, count: int) -> GpuSet:
    return frozenset(gpu.id for gpu in node.gpus[:count])


def suspended(number: int, gpus: GpuSet) -> Job:
    made = make_job(number, len(gpus), 100.0, submit=float(number), start_time=float(number))
    return ideal.suspended(made, gpus)


def on(job: Job) -> Job:
    return ideal.running(job, job.last)


def runs(
    policy: Policy, nodes: list[Node], jobs: list[Job], now: float = 100.0, **served: float
) -> set[JobId]:
    """Who is on GPUs once the plan is carried out. `served`: seconds on GPUs by job, such as `j2=9e5`."""
    usage = {}
    for job in jobs:
        seconds = served.get(f"j{job.id}", 0.0 if job.start_time is None else 10.0)
        since = now if job.placement.gpus else None
        usage[job.id] = Usage(
            seconds=seconds,
            gpu_seconds=seconds * job.gpus,
            since=since,
            gpus=len(job.placement.gpus),
            idle_since=float(job.id) + 10.0 if since is None and seconds else None,
        )
    by_id = {job.id: job for job in jobs}
    snapshot = Snapshot(time=now, nodes={n.name: n for n in nodes}, jobs=by_id, usage=usage)
    plan = policy.plan(snapshot, Memory())
    targets = dict(plan.targets)
    if plan.problems:
        solver = ImmediateSolver(answers)
        for problem_name, problem in plan.problems.items():
            solver.submit(problem_name, problem, lambda: None)
        solutions = solver.take()
        changed = Changes(frozenset(), frozenset(), frozenset(solutions))
        targets |= policy.plan(replace(snapshot, solutions=solutions, changed=changed), plan.memory).targets
    after = {job_id: job.placement for job_id, job in by_id.items()}
    after |= {job_id: target.placement for job_id, target in targets.items()}
    return {job_id for job_id, placement in after.items() if placement.gpus}


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_bound_to_a_drained_node_go_on_there_one_after_the_other(name: str) -> None:
    open_node, closed = cluster(2, 2)
    closed = replace(closed, available=False, reason="DRAINED fan")
    first, second = suspended(1, some(closed, 2)), suspended(2, some(closed, 2))
    elsewhere = on(suspended(3, some(open_node, 2)))
    queued = make_job(4, 2, 50.0, submit=4.0)
    make, nodes = POLICIES[name], [open_node, closed]
    ran = runs(make(), nodes, [first, second, elsewhere, queued])
    assert len(ran & {1, 2}) == 1, "their turn does not depend on what is free elsewhere"
    assert ran - {1, 2} <= {3, 4} and len(ran - {1, 2}) == 1, "the one open node takes one gang"
    (going_on,) = ran & {1, 2}
    left = [on(job) if job.id == going_on else job for job in (first, second)]
    assert len(runs(make(), nodes, [*left, elsewhere, queued], 101.0) & {1, 2}) == 1
    left = [job for job in (first, second) if job.id != going_on]
    assert left[0].id in runs(make(), nodes, [*left, elsewhere, queued], 102.0)


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_goes_on_where_the_agent_does_not_answer(name: str) -> None:
    (node,) = cluster(1, 2)
    sick = tuple(replace(gpu, healthy=False) for gpu in node.gpus)
    lost = replace(node, available=False, reason="no answer", gpus=sick)
    assert runs(POLICIES[name](), [lost], [suspended(1, some(lost, 2)), make_job(2, 1, 5.0)]) == set()


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_on_a_drained_node_is_not_stopped_for_one_that_cannot_go_there(name: str) -> None:
    open_node, closed = cluster(2, 1)
    closed = replace(closed, available=False, reason="DRAINED fan")
    there, elsewhere = on(suspended(2, some(closed, 1))), on(suspended(1, some(open_node, 1)))
    queued = make_job(3, 1, 50.0, submit=3.0)
    ran = runs(POLICIES[name](), [open_node, closed], [elsewhere, there, queued], 1e6, j1=8e5, j2=9e5)
    assert 2 in ran and len(ran) == 2


_PASSES_BY_SERVICE = {"las", "las by entry", "las late", "las strict", "las undiscretised", "gittins"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_gang_on_a_drained_and_an_open_node_takes_its_turn_on_the_open_one(name: str) -> None:
    open_node, closed = cluster(2, 2)
    closed = replace(closed, available=False, reason="DRAINED fan")
    gang, nodes = suspended(1, some(open_node, 2) | some(closed, 2)), [open_node, closed]
    gang = replace(gang, request=replace(gang.request, nodes=2))
    there, queued = on(suspended(2, some(open_node, 2))), make_job(3, 2, 500.0, submit=3.0)
    holder = on(suspended(4, some(closed, 1)))
    make = POLICIES[name]
    ran = runs(make(), nodes, [gang, there, holder], 1e6, j1=5, j2=9e5)
    assert ran == {2, 4}, "no job stops for it, and none waits, before its part of the drained node is idle"
    ran = runs(make(), nodes, [gang, there], 1e6 + 1, j1=5, j2=9e5)
    assert ran == ({1} if name in _PASSES_BY_SERVICE else {2}), "then it is one among those of the open one"
    ran = runs(make(), nodes, [gang, queued], 1e6 + 2, j1=5)
    # (By size, and without queues by service, the one that waits comes first.)
    assert ran == ({3} if name in {"sjf", "las undiscretised"} else {1})
    assert runs(make(), nodes, [gang, queued, holder], 1e6 + 3, j1=5) == {3, 4}
    assert runs(make(), nodes, [gang], 1e6 + 4, j1=5) == {1}


@pytest.mark.parametrize("name", POLICIES)
def test_a_promise_of_another_policy_binds_no_gang(name: str) -> None:
    full, free = cluster(2, 2)
    promised = make_job(2, 2, 500.0, submit=2.0, promised=some(full, 2))
    drained = replace(make_job(3, 2, 500.0, submit=3.0), promised=some(full, 2))
    there = on(suspended(1, some(full, 2)))
    assert 2 in runs(POLICIES[name](), [full, free], [there, promised])
    assert 3 in runs(POLICIES[name](), [replace(full, available=False, reason="DRAINED"), free], [drained])
