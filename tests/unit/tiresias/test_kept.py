# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan of an object that finds by itself what changed, as in the daemon, equals the plan of a new object,
whatever goes wrong in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.model import Job, Phase, Plan, Profile
from controller.policies.base import Policy
from tests.unit.policies.test_gandiva_kept import Trouble
from tests.unit.tiresias.test_invariants import POLICIES, las

IMPATIENT = las(consolidate_wait_seconds=6.0)
"""Gangs that wait for one node soon take any."""


@dataclass
class GangTrouble(Trouble):
    """The same cluster without slices; times jump, and models are profiled."""

    policy_name: str = "las"

    def make(self) -> Policy:
        return IMPATIENT() if self.policy_name == "las impatient" else POLICIES[self.policy_name]()

    def arrive(self) -> None:
        before = set(self.jobs)
        super().arrive()
        for job_id in self.jobs.keys() - before:
            model = self.rng.choice([None, "vgg", "resnet"])
            # (All jobs of a model have its skew.)
            profile = {"vgg": Profile(state_bytes=10, largest_tensor_bytes=7)}.get(model or "", Profile())
            request = replace(self.jobs[job_id].request, model=model)
            self.put(self.jobs[job_id], request=request, profile=profile)

    def grown(self, job: Job) -> Job:
        grown = super().grown(job)
        if job.accrues_since is not None and self.rng.random() < 0.05:
            ran = grown.run_seconds + self.rng.choice([-2.0, 3.0, 100.0])
            grown = replace(grown, run_seconds=ran, gpu_seconds=ran * job.gpus)
            self.jobs[job.id] = grown
        return grown

    def upset(self) -> None:
        waiting = [i for i, job in self.jobs.items() if job.phase is Phase.QUEUED and not job.run_seconds]
        if not waiting or self.rng.random() < 0.8:
            super().upset()
            return
        # Somebody started it behind our back.
        job = self.jobs[self.rng.choice(waiting)]
        cards = self.nodes["n10"].gpus[: job.gpus]
        where: dict[str, Any] = {"binding": frozenset(g.id for g in cards)}
        where["running_on"] = where["binding"]
        self.put(job, phase=Phase.RUNNING, accrues_since=self.now, not_before=None, **where)

    def compare_memory(self, plan: Plan, fresh: Plan) -> None:
        assert plan.wake_at == pytest.approx(fresh.wake_at, abs=1e-4)
        assert accounts(plan) == accounts(fresh)


def accounts(plan: Plan) -> dict[str, list[float | None]]:
    """What is remembered of jobs; the last item says what they had been given up to some time."""
    return {
        i: [None if value is None else round(value, 4) for value in (entry or [])[:8]]
        for i, entry in plan.state["jobs"].items()
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), name=st.sampled_from([*sorted(POLICIES), "las impatient"]))
def test_a_kept_queue_plans_as_a_new_one(seed: int, name: str) -> None:
    trouble = GangTrouble(random.Random(seed), told=False, policy_name=name)
    for _ in range(25):
        trouble.turn()
