# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that has just come onto its GPUs keeps them until its switch has paid off (`Job.exempt_until`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.model import Changes, Job, JobId, Phase, Snapshot
from controller.policies.base import Policy
from controller.policies.baselines import Sjf, Srtf
from controller.policies.tiresias import TiresiasLas, TiresiasLasSettings
from tests.unit.tiresias.harness import cluster, job

NODES = {node.name: node for node in cluster(1, 2)}
GPUS = frozenset(gpu.id for node in NODES.values() for gpu in node.gpus)


def running(until: float | None) -> Job:
    """It is 100 s of 2 GPUs old."""
    old = replace(job(1, 2, 1000.0), phase=Phase.RUNNING, binding=GPUS, running_on=GPUS, start_time=0.0)
    return replace(old, run_seconds=100.0, gpu_seconds=200.0, exempt_until=until)


def at(now: float, until: float | None, told: bool, serial: int) -> Snapshot:
    seen = replace(running(until), run_seconds=100.0 + now, gpu_seconds=200.0 + 2 * now)
    jobs = {seen.id: seen, JobId(2): job(2, 1, 10.0)}
    nothing: frozenset[Any] = frozenset()
    changes = Changes(serial - 1, frozenset(jobs) if serial == 1 else nothing, nothing) if told else None
    return Snapshot(now, NODES, jobs, serial=serial, changes=changes)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    "make",
    [Sjf, Srtf, lambda: TiresiasLas(TiresiasLasSettings(queue_limits=[60.0]))],
    ids=["sjf", "srtf", "las"],
)
def test_it_is_preempted_when_its_switch_has_paid_off_and_not_before(
    make: Callable[[], Policy], told: bool
) -> None:
    policy, state = make(), dict[str, Any]()

    def runs(now: float, until: float | None, serial: int) -> tuple[bool, float | None]:
        nonlocal state
        plan = policy.plan(at(now, until, told, serial), state)
        state = plan.state  # type: ignore[assignment]
        found: Mapping[JobId, Any] = plan.assignments
        return JobId(1) not in found or found[JobId(1)].run, plan.wake_at

    assert runs(5.0, 20.0, 1) == (True, 20.0)
    assert runs(10.0, 20.0, 2)[0]
    assert not runs(20.0, 20.0, 3)[0]


def test_without_such_a_time_it_is_preempted_at_once() -> None:
    plan = Srtf().plan(at(5.0, None, False, 1), {})
    assert not plan.assignments[JobId(1)].run and plan.assignments[JobId(2)].run
