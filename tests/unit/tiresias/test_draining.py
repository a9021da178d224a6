# SPDX-License-Identifier: GPL-2.0-or-later
"""A node that is being drained gets empty: what Slurm has bound to it goes on there, nothing else starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.model import Job, JobId, Node, Phase, Snapshot
from controller.policies.base import Policy
from tests.unit.tiresias.harness import cluster, job
from tests.unit.tiresias.test_invariants import POLICIES


def suspended(number: int, node: Node, ordinals: range) -> Job:
    gpus = frozenset(node.gpus[ordinal].id for ordinal in ordinals)
    return replace(
        job(number, len(gpus), 100.0, submit=float(number)),
        phase=Phase.SUSPENDED,
        binding=gpus,
        running_on=gpus,
        start_time=float(number),
        run_seconds=10.0,
        gpu_seconds=10.0 * len(gpus),
    )


def running(policy: Policy, nodes: list[Node], jobs: list[Job], now: float = 100.0) -> set[JobId]:
    snapshot = Snapshot(now, {n.name: n for n in nodes}, {j.id: j for j in jobs})
    plan = policy.plan(snapshot, {})
    return {job_id for job_id, assignment in plan.assignments.items() if assignment.run}


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_bound_to_a_drained_node_go_on_there_one_after_the_other(name: str) -> None:
    open_node, closed = cluster(2, 2)
    closed = replace(closed, available=False, reason="DRAINED fan")
    first, second = suspended(1, closed, range(2)), suspended(2, closed, range(2))
    elsewhere = replace(suspended(3, open_node, range(2)), phase=Phase.RUNNING)
    queued = job(4, 2, 50.0, submit=4.0)
    policy = POLICIES[name]()
    ran = running(policy, [open_node, closed], [first, second, elsewhere, queued])
    assert len(ran & {1, 2}) == 1, "their turn does not depend on what is free elsewhere"
    assert ran - {1, 2} <= {3, 4} and len(ran - {1, 2}) == 1, "the one open node takes one gang"
    (going_on,) = ran & {1, 2}
    left = [replace(j, phase=Phase.RUNNING) if j.id == going_on else j for j in (first, second)]
    assert len(running(policy, [open_node, closed], [*left, elsewhere, queued], 101.0) & {1, 2}) == 1
    left = [j for j in (first, second) if j.id != going_on]
    assert left[0].id in running(policy, [open_node, closed], [*left, elsewhere, queued], 102.0)


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_goes_on_where_the_agent_does_not_answer(name: str) -> None:
    (node,) = cluster(1, 2)
    sick = tuple(replace(gpu, healthy=False) for gpu in node.gpus)
    lost = replace(node, available=False, reason="no answer", gpus=sick)
    assert running(POLICIES[name](), [lost], [suspended(1, lost, range(2)), job(2, 1, 5.0)]) == set()


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_on_a_drained_node_is_not_stopped_for_one_that_cannot_go_there(name: str) -> None:
    open_node, closed = cluster(2, 1)
    closed = replace(closed, available=False, reason="DRAINED fan")
    there = replace(suspended(2, closed, range(1)), phase=Phase.RUNNING, run_seconds=9e5, gpu_seconds=9e5)
    elsewhere = replace(
        suspended(1, open_node, range(1)), phase=Phase.RUNNING, run_seconds=8e5, gpu_seconds=8e5
    )
    queued = replace(job(3, 1, 50.0, submit=3.0))
    ran = running(POLICIES[name](), [open_node, closed], [elsewhere, there, queued], 1e6)
    assert 2 in ran and len(ran) == 2


def on_both(open_node: Node, closed: Node) -> Job:
    """A suspended gang on all of both."""
    gpus = frozenset(gpu.id for node in (open_node, closed) for gpu in node.gpus)
    gang = replace(suspended(1, closed, range(2)), binding=gpus, running_on=gpus)
    return replace(gang, request=replace(gang.request, gpus=len(gpus), nodes=2))


_PASSES_BY_SERVICE = {"las", "las by entry", "las late", "las strict", "las undiscretised", "gittins"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_gang_on_a_drained_and_an_open_node_takes_its_turn_on_the_open_one(name: str) -> None:
    open_node, closed = cluster(2, 2)
    closed = replace(closed, available=False, reason="DRAINED fan")
    gang, nodes = on_both(open_node, closed), [open_node, closed]
    there = replace(suspended(2, open_node, range(2)), phase=Phase.RUNNING, run_seconds=9e5, gpu_seconds=9e5)
    queued = job(3, 2, 500.0, submit=3.0)
    holder = replace(suspended(4, closed, range(1)), phase=Phase.RUNNING)
    policy = POLICIES[name]()
    ran = running(policy, nodes, [gang, there, holder], 1e6)
    assert ran == {2, 4}, "nobody stops for it, and nobody waits, before its part of the drained node is idle"
    ran = running(policy, nodes, [gang, there], 1e6 + 1)
    assert ran == ({1} if name in _PASSES_BY_SERVICE else {2}), "then it is one among those of the open one"
    ran = running(policy, nodes, [gang, queued], 1e6 + 2)
    # (By size, and without queues by service, the one that waits comes first.)
    assert ran == ({3} if name in {"sjf", "las undiscretised"} else {1})
    assert running(policy, nodes, [gang, queued, holder], 1e6 + 3) == {3, 4}
    assert running(policy, nodes, [gang], 1e6 + 4) == {1}
