# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that has just come onto its GPUs keeps them until its switch has paid off (`Job.keeps_until`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.model import ALL_CHANGED, Changes, Job, JobId, Memory, Note, Snapshot, Usage
from controller.policies.protocol import Policy
from tests.unit.policies.ideal import cluster, make_job, running
from tests.unit.policies.presets import preset

NODES = {node.name: node for node in cluster(1, 2)}
GPUS = frozenset(gpu.id for node in NODES.values() for gpu in node.gpus)
NOTHING = Changes(frozenset(), frozenset())


def old(until: float | None) -> Job:
    """It is on two GPUs."""
    return replace(running(make_job(1, 2, 1000.0), GPUS), start_time=0.0, keeps_until=until)


def at(now: float, until: float | None, changed: Changes) -> Snapshot:
    jobs = {JobId(1): old(until), JobId(2): make_job(2, 1, 10.0)}
    usage = {JobId(1): Usage(seconds=100.0, gpu_seconds=200.0, since=0.0, gpus=2)}
    return Snapshot(time=now, nodes=NODES, jobs=jobs, usage=usage, changed=changed)


@pytest.mark.parametrize("changed", [NOTHING, ALL_CHANGED])
@pytest.mark.parametrize(
    "make",
    [preset("sjf"), preset("srtf"), preset("tiresias-las", queue_limits=[60.0])],
    ids=["sjf", "srtf", "las"],
)
def test_it_is_preempted_when_its_switch_has_paid_off_and_not_before(
    make: Callable[[], Policy], changed: Changes
) -> None:
    policy, notes = make(), dict[JobId, Note]()

    def stops(now: float, changed: Changes) -> tuple[bool, float]:
        plan = policy.plan(at(now, 20.0, changed), Memory({}, dict(notes)))
        notes.update(plan.memory.jobs)
        return JobId(1) in plan.targets, plan.wake_at

    assert stops(5.0, ALL_CHANGED) == (False, 20.0)
    assert not stops(10.0, changed)[0]
    assert stops(20.0, changed)[0]


def test_without_such_a_time_it_is_preempted_at_once() -> None:
    plan = preset("srtf")().plan(at(5.0, None, ALL_CHANGED), Memory())
    assert not plan.targets[JobId(1)].placement.gpus and plan.targets[JobId(2)].placement.gpus


def test_slices_end_when_they_are_over() -> None:
    """`slice_seconds` bounds how often jobs change places there."""
    policy = preset("gandiva", slice_seconds=60.0)()
    first = replace(old(500.0), request=replace(old(None).request, nodes=1))
    jobs = {JobId(1): first, JobId(2): make_job(2, 2, nodes=1)}
    usage = {JobId(1): Usage(since=0.0, gpus=2)}
    plan = policy.plan(Snapshot(time=0.0, nodes=NODES, jobs=jobs, usage=usage), Memory())
    assert plan.wake_at == 60.0
    jobs[JobId(2)] = replace(jobs[JobId(2)], promised=plan.targets[JobId(2)].placement.allocation)
    seen = Snapshot(
        time=60.0, nodes=NODES, jobs=jobs, usage=usage, changed=Changes(frozenset({JobId(2)}), frozenset())
    )
    plan = policy.plan(seen, Memory())
    assert not plan.targets[JobId(1)].placement.gpus and plan.targets[JobId(2)].placement.gpus
