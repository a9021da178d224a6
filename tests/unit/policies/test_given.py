# SPDX-License-Identifier: GPL-2.0-or-later
"""What allocations are given of prices, deadlines and what jobs have done, by policies in rounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from controller.model import Configuration, Job, JobId, Rate
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import AllocationJob, Given
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.mechanisms.rounds.given import equal_share
from controller.policies.mechanisms.rounds.in_force import InForce
from controller.policies.mechanisms.rounds.member import Member
from controller.solver.solve import find
from tests.unit.policies.ideal import Ideal, make_job, make_node
from tests.unit.policies.presets import preset

RATES = {"big": {"v100": 4.0, "k80": 1.0}, "small": {"v100": 2.0, "k80": 1.0}}
"""Vectors V8 to V11 of the specification, with prices of 3.1 and 0.8."""
PRICES = {"v100": 3.1, "k80": 0.8}


def test_the_equal_part_of_jobs_without_an_allocation_is_valid() -> None:
    """No job has more than all its time, and no type more than its GPUs; a job that may use all types has as
    much of the GPUs as its weight is of all weights, or all its time."""
    workers = {"k80": 3, "p100": 2, "v100": 4}
    for seed in range(50):
        draw = random.Random(seed)
        members = [
            Member(make_job(n, draw.choice([1, 1, 2, 4]), weight=draw.choice([0.5, 1.0, 3.0])))
            for n in range(1, draw.randint(2, 20))
        ]
        weights = math.fsum(member.job.request.weight for member in members)
        for member in members:
            member.types = tuple(draw.sample([*workers, "v100 scattered"], draw.randint(1, 4)))
        parts = equal_share(members, workers)
        assert all(fraction >= 0 for part in parts.values() for fraction in part.values())
        assert all(math.fsum(part.values()) <= 1 + 1e-9 for part in parts.values())
        for name, gpus in workers.items():
            used = math.fsum(m.job.gpus * parts[m.id].get(name, 0.0) for m in members)
            assert used <= gpus + 1e-9
        for member in members:
            if set(workers) <= set(member.types):
                equal = sum(workers.values()) * member.job.request.weight / weights / member.job.gpus
                assert math.fsum(parts[member.id].values()) == pytest.approx(min(1.0, equal))


def job_of(number: int, model: str, duration: float | None = None) -> Job:
    return make_job(number, duration=duration, model=model)


def after(policy: str, jobs: list[Job], until: float = 100.0, **settings: Any) -> Ideal:
    """One GPU of each type, on which no job runs beyond its fraction."""
    made = preset(policy, round_seconds=20.0, refill=False, change_types=True, **settings)
    ideal = Ideal(made, [make_node("n1", 1, model="v100"), make_node("n2", 1, model="k80")], jobs)
    ideal.rates = {m: {Configuration(t, 1): Rate(r) for t, r in known.items()} for m, known in RATES.items()}
    ideal.run(until=until)
    return ideal


def fractions(ideal: Ideal, number: int) -> dict[str, float]:
    """As they are remembered, which names no type of which it has none."""
    parts = InForce(ideal.common["fractions"]).of(JobId(number))
    known = {gpu_type: fraction for (gpu_type, _), fraction in parts.items()}
    return dict.fromkeys(PRICES, 0.0) | known


def test_v10_the_cheapest_throughput_is_that_of_one_job_on_the_fast_type() -> None:
    jobs = [job_of(1, "big"), job_of(2, "small")]
    ideal = after("gavel-cost", jobs, prices=PRICES)
    assert fractions(ideal, 1) == {"v100": pytest.approx(1.0, abs=1e-4), "k80": pytest.approx(0.0, abs=1e-4)}
    assert sum(fractions(ideal, 2).values()) == pytest.approx(0.0, abs=1e-4)


def test_where_the_fast_type_is_dear_the_slow_one_is_used_and_types_without_a_price_cost_one() -> None:
    dear = after("gavel-cost", [job_of(1, "big")], prices={"v100": 5.0})
    assert fractions(dear, 1) == {"v100": pytest.approx(0.0, abs=1e-4), "k80": pytest.approx(1.0, abs=1e-4)}
    alike = after("gavel-cost", [job_of(1, "big")])
    assert fractions(alike, 1)["v100"] == pytest.approx(1.0, abs=1e-4)


def test_a_job_with_a_declared_duration_has_a_deadline_and_runs_for_it() -> None:
    """1000 s on its fastest type are 2000 steps; within 2500 s they need 0.8 steps per second."""
    jobs = [job_of(1, "big"), job_of(2, "small", duration=1000.0)]
    ideal = after("gavel-cost-slo", jobs, until=10.0, prices=PRICES, deadline_ratio=2.5)
    speed = sum(RATES["small"][t] * fraction for t, fraction in fractions(ideal, 2).items())
    assert speed == pytest.approx(0.8, abs=1e-3)
    assert fractions(ideal, 1)["v100"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("ratio", "speed"), [(0.0, 0.8), (5.0, 0.8)])
def test_a_job_with_a_deadline_runs_for_it(ratio: float, speed: float) -> None:
    """The same by the job's own deadline, whatever the ratio."""
    jobs = [job_of(1, "big"), replace(job_of(2, "small", duration=1000.0), deadline_at=2500.0)]
    ideal = after("gavel-cost-slo", jobs, until=10.0, prices=PRICES, deadline_ratio=ratio)
    found = sum(RATES["small"][t] * fraction for t, fraction in fractions(ideal, 2).items())
    assert found == pytest.approx(speed, abs=1e-3)


def test_without_a_deadline_and_a_ratio_no_job_has_one() -> None:
    jobs = [job_of(1, "big", duration=1000.0), job_of(2, "small", duration=1000.0)]
    ideal = after("gavel-cost-slo", jobs, until=10.0, prices=PRICES)
    assert sum(fractions(ideal, 2).values()) == pytest.approx(0.0, abs=1e-4)


def test_a_deadline_that_is_changed_counts_at_once() -> None:
    jobs = [job_of(1, "big"), job_of(2, "small", duration=1000.0)]
    ideal = after("gavel-cost-slo", jobs, until=10.0, prices=PRICES)
    ideal.change(2, deadline_at=2510.0)
    ideal.run(until=20.0)
    assert sum(fractions(ideal, 2).values()) > 0.5


def test_v13_what_a_job_has_done_counts_as_time_on_its_own_part() -> None:
    """100 steps are 40 s of the part of one job, and 66.7 s of the other's."""
    jobs = tuple(
        AllocationJob(
            id=JobId(i), throughput=RATES[m], steps_left=300.0, seconds_so_far=100.0, steps_done=100.0
        )
        for i, m in enumerate(RATES)
    )
    given = Given(types=("v100", "k80"), workers={"v100": 1, "k80": 1}, jobs=jobs)
    given = given_data.load(given_data.dump(given))
    found = ALLOCATIONS["gavel-ftf"](AllocationSettings()).allocate(given, find)
    assert found.objective == pytest.approx(1.23481, abs=1e-4)
    assert found.fractions[JobId(0),]["v100"] == pytest.approx(0.69157, abs=1e-3)


def test_finish_time_fairness_favours_the_job_that_has_done_less_of_its_part() -> None:
    """The second comes when the first has had all of the cluster for long."""
    jobs = [job_of(1, "big", duration=5000.0), replace(job_of(2, "big", duration=5000.0), submit_time=2000.0)]
    ideal = after("gavel-ftf", jobs, until=2010.0)
    assert fractions(ideal, 2)["v100"] > 0.55 > 0.45 > fractions(ideal, 1)["v100"]
