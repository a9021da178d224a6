# SPDX-License-Identifier: GPL-2.0-or-later
"""What users read of a job that did not start, and of operations that put something right."""

from __future__ import annotations

import time

import pytest

from controller.actions import Action, Resume, Withdraw, diff
from controller.model import GpuId, Job, Phase, Plan, Snapshot, SuspendMethod
from controller.policies.base import Policy
from controller.policies.gandiva import Gandiva, GandivaSettings
from controller.policies.tiresias import TiresiasLas
from tests.unit.policies.harness import make_job, make_node

GPU = frozenset({GpuId("n1", 0)})


def snapshot(job: Job) -> Snapshot:
    return Snapshot(time=3600.0, nodes={"n1": make_node("n1", 1)}, jobs={job.id: job})


def actions(job: Job) -> list[Action]:
    plan = Plan({}, {}, {}, None)
    return diff(snapshot(job), plan, suspend_in_slurm=True, default_method=SuspendMethod.COOPERATIVE)


@pytest.mark.parametrize("policy", [Gandiva(GandivaSettings()), TiresiasLas()])
def test_a_job_that_did_not_start_is_told_when_it_is_tried_again(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(1, not_before=3661.0)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert policy.plan(snapshot(job), {}).reasons[job.id] == "start failed; retry at 01:01:01"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_operations_that_put_something_right_say_what_they_do() -> None:
    stale = make_job(1, phase=Phase.STARTING, binding=GPU)
    assert actions(stale) == [Withdraw(stale.id, "stale release; job re-held")]
    stuck = make_job(2, phase=Phase.STUCK, binding=GPU, running_on=GPU)
    assert actions(stuck) == [Resume(stuck.id, GPU, "recovers an incomplete suspend or resume")]
