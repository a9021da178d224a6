# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every allocation, and what Gavel's policies promise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given as drawn_from
from hypothesis import settings as how
from hypothesis import strategies as st

from controller.model import JobId
from controller.policies.allocations.allocation import Allocated, Entity, Given
from controller.policies.allocations.checked import effective
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import ONE_GPU
from tests.unit.allocations.problems import answer, drawn, each
from tests.unit.draws import draws

SEEDS = st.integers(0, 10**9)
SHARING = (
    "gavel-cost",
    "gavel-fifo",
    "gavel-ftf",
    "gavel-hierarchical",
    "gavel-las",
    "gavel-makespan",
    "gavel-max-throughput",
)
SLACK = 1e-9


def check_valid(problem: Given, allocated: Allocated) -> None:
    """Fractions are none below 0, no job has more than all the time, no type more than its GPUs."""
    sizes = {job.id: job.gpus for job in problem.jobs}
    time = dict.fromkeys(sizes, 0.0)
    used = dict.fromkeys(problem.types, 0.0)
    for jobs, by_type in allocated.fractions.items():
        for name, fraction in by_type.items():
            assert 0 <= fraction <= 1
            used[name] += fraction * sizes[jobs[0]]
            for job in jobs:
                time[job] += fraction
    assert all(total <= 1 + SLACK for total in time.values())
    assert all(used[name] <= problem.workers[name] * (1 + SLACK) for name in problem.types)
    assert {(job.id,) for job in problem.jobs} <= set(allocated.fractions)


@pytest.mark.parametrize("name", ALLOCATIONS)
@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS)
def test_valid_and_the_same_again(name: str, seed: int) -> None:
    problem = drawn(seed, one_gpu=name in ONE_GPU, pairs=True)
    options = {"space_sharing": True} if name in SHARING and seed % 2 else {}
    allocated = answer(name, problem, **options)
    check_valid(problem, allocated)
    draw = random.Random(seed)
    shuffled = replace(
        problem,
        types=tuple(draw.sample(problem.types, len(problem.types))),
        jobs=tuple(draw.sample(problem.jobs, len(problem.jobs))),
        pairs=tuple(draw.sample(problem.pairs, len(problem.pairs))),
    )
    again = answer(name, shuffled, **options)
    assert again.objective == allocated.objective
    assert again.fractions == allocated.fractions


@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS)
def test_nobody_is_worse_off_than_with_an_equal_split(seed: int) -> None:
    problem = each(drawn(seed), gpus=1, weight=1.0)
    least = min(1.0, sum(problem.workers.values()) / len(problem.jobs))
    # An equal split gives each job its part only where every job can use every type.
    everywhere = tuple(
        replace(job, throughput={name: job.throughput.get(name, 0.5) for name in problem.types})
        for job in problem.jobs
    )
    assert answer("gavel-las", replace(problem, jobs=everywhere)).objective >= least - 1e-6


@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS, factor=st.floats(0.01, 100))
def test_the_unit_of_a_jobs_steps_makes_no_difference(seed: int, factor: float) -> None:
    problem = drawn(seed)
    first = problem.jobs[0]
    scaled = replace(first, throughput={name: rate * factor for name, rate in first.throughput.items()})
    other = replace(problem, jobs=(scaled, *problem.jobs[1:]))
    assert answer("gavel-las", other).objective == pytest.approx(
        answer("gavel-las", problem).objective, rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize("name", ["gavel-las", "gavel-max-throughput", "gavel-makespan"])
@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS)
def test_space_sharing_never_hurts(name: str, seed: int) -> None:
    problem = drawn(seed, pairs=True)
    alone, shared = answer(name, problem), answer(name, problem, space_sharing=True)
    worst = 1 if name == "gavel-makespan" else -1
    assert worst * shared.objective <= worst * alone.objective + 2e-6 * max(1.0, abs(alone.objective))


@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS)
def test_knowing_the_throughputs_never_hurts(seed: int) -> None:
    problem = drawn(seed)
    aware = answer("gavel-las", problem)
    agnostic = effective(problem, answer("gavel-las", problem, throughputs="agnostic").fractions)
    workers = sum(problem.workers.values())
    shares = []
    for job in problem.jobs:
        usable = {n: r for n, r in job.throughput.items() if job.gpus <= problem.workers[n]}
        equal = sum(rate * problem.workers[name] / workers for name, rate in usable.items())
        shares.append(agnostic[job.id] / equal * job.gpus / job.weight)
    assert aware.objective >= min(shares) - 1e-6


@how(max_examples=draws(7, 150))
@drawn_from(seed=SEEDS)
def test_water_filling_raises_the_lowest_at_least_as_far(seed: int) -> None:
    """Its lowest level is that of max-min fairness, and nobody has less than there must be."""
    problem = each(drawn(seed), gpus=1, weight=1.0)
    rates = effective(problem, answer("gavel-hierarchical", problem).fractions)
    workers = sum(problem.workers.values())
    levels = [
        rates[job.id] / sum(rate * problem.workers[name] / workers for name, rate in job.throughput.items())
        for job in problem.jobs
    ]
    assert min(levels) == pytest.approx(answer("gavel-las", problem).objective, rel=1e-5, abs=1e-5)


def test_a_weightier_entity_has_more() -> None:
    problem = replace(
        drawn(3), entities=(Entity("light", 1.0), Entity("heavy", 3.0)), types=("t",), workers={"t": 2}
    )
    jobs = tuple(
        replace(
            problem.jobs[0],
            id=JobId(number),
            throughput={"t": 1.0},
            gpus=1,
            weight=1.0,
            entity="heavy" if number % 2 else "light",
        )
        for number in range(8)
    )
    found = answer("gavel-hierarchical", replace(problem, jobs=jobs, prices={}))
    light, heavy = found.fractions[JobId(0),]["t"], found.fractions[JobId(1),]["t"]
    assert heavy == pytest.approx(3 * light, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in ALLOCATIONS if name not in ONE_GPU])
def test_virtual_types_draw_on_the_same_gpus(name: str) -> None:
    """A gang that is slow on scattered GPUs uses those that are together, and both use the same."""
    problem = drawn(11)
    first = problem.types[0]
    problem = replace(
        problem,
        types=(*problem.types, "scattered"),
        draws_on={"scattered": first},
        jobs=tuple(
            replace(job, throughput={**job.throughput, "scattered": job.throughput.get(first, 0.0) / 2})
            for job in problem.jobs
        ),
    )
    allocated = answer(name, problem)
    used = sum(
        (by_type[first] + by_type["scattered"]) * next(job.gpus for job in problem.jobs if (job.id,) == jobs)
        for jobs, by_type in allocated.fractions.items()
    )
    assert used <= problem.workers[first] * (1 + SLACK)
    check_valid(replace(problem, workers={**problem.workers, "scattered": problem.workers[first]}), allocated)
