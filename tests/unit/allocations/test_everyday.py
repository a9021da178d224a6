# SPDX-License-Identifier: GPL-2.0-or-later
"""Every policy answers everyday problems, whichever solver it asks, and all solvers find the same objective:
40 of each with each change, 2,000 each night."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.policies.allocations.allocation import Entity, Given
from controller.policies.allocations.presets import ALLOCATIONS
from tests.unit.allocations.problems import answer, each, everyday, given
from tests.unit.draws import draws

WITHIN: Mapping[str, float] = {"gavel-hierarchical": 1e-5, "gavel-ftf": 2e-6}
"""Objectives are equal within one part in a million but for these: by RISES, and by the tolerance of ECOS (of
Clarabel it is less)."""
SEEDS = 40
PORTIONS = draws(1, 50)
AGNOSTIC: Mapping[str, Any] = {"throughputs": "agnostic"}
PAIRS: Mapping[str, Any] = {"space_sharing": True}
LINEAR, CONES = ("clarabel", "highs"), ("clarabel", "ecos")
CASES: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "las": ("gavel-las", {}, LINEAR),
    "las agnostic": ("gavel-las", AGNOSTIC, LINEAR),
    "las pairs": ("gavel-las", PAIRS, LINEAR),
    "hierarchical": ("gavel-hierarchical", {}, LINEAR),
    "makespan": ("gavel-makespan", {}, LINEAR),
    "makespan pairs": ("gavel-makespan", PAIRS, LINEAR),
    "ftf": ("gavel-ftf", {}, CONES),
    "ftf pairs": ("gavel-ftf", PAIRS, CONES),
    "max throughput": ("gavel-max-throughput", {}, LINEAR),
    "max throughput normalised": ("gavel-max-throughput", {"normalised": True}, LINEAR),
    "fifo": ("gavel-fifo", {}, LINEAR),
    "cost": ("gavel-cost", {}, LINEAR),
    "cost slo": ("gavel-cost-slo", {}, LINEAR),
    "cost slo normalised": ("gavel-cost-slo", {"normalised": True}, LINEAR),
    "strategy proof": ("gavel-strategy-proof", {}, ()),
    "allox": ("allox", {}, ()),
    "sjf": ("gavel-sjf", {}, ()),
    "isolated": ("isolated", {}, ()),
    "proportional": ("proportional", {}, ()),
    "gandiva": ("gavel-gandiva", {}, ()),
}


def test_every_policy_is_here() -> None:
    assert {policy for policy, _, _ in CASES.values()} == set(ALLOCATIONS)


@pytest.mark.parametrize("portion", range(PORTIONS))
@pytest.mark.parametrize("name", CASES)
def test_an_everyday_problem_has_an_answer(name: str, portion: int) -> None:
    policy, settings, solvers = CASES[name]
    most = {"gavel-strategy-proof": 8, "gavel-hierarchical": 12}.get(policy, 24)
    for seed in range(portion * SEEDS, (portion + 1) * SEEDS):
        problem = everyday(
            seed,
            most_jobs=8 if settings is PAIRS else most,
            pairs=settings is PAIRS,
            one_gpu=policy == "allox",
            entities=2 if policy == "gavel-hierarchical" else 0,
        )
        _same(policy, problem, settings, solvers, seed)


def _same(
    policy: str, problem: Given, settings: Mapping[str, Any], solvers: tuple[str, ...], what: object
) -> None:
    there = [{"solver": name} for name in solvers if name != "ecos" or importlib.util.find_spec("ecos")]
    found = [answer(policy, problem, **settings, **chosen).objective for chosen in there or [{}]]
    near = pytest.approx([found[0]] * len(found), rel=WITHIN.get(policy, 1e-6), abs=1e-9)
    assert found == near, (policy, what)


WITH_SOLVERS = {name: case for name, case in CASES.items() if case[2] and case[1] is not PAIRS}


@pytest.mark.parametrize("workers", [10**6, 10**10, 10**15, 10**19])
@pytest.mark.parametrize("name", WITH_SOLVERS)
def test_a_type_with_more_gpus_than_all_jobs_can_use(name: str, workers: int) -> None:
    """Such as a cloud, that some jobs cannot use. Clarabel calls a problem with such a limit unbounded, and
    for those jobs an equal split is next to nothing."""
    policy, settings, solvers = WITH_SOLVERS[name]
    most, entities = (12, 2) if policy == "gavel-hierarchical" else (24, 0)
    for seed in range(draws(3, 100)):
        problem = everyday(seed, most_jobs=most, entities=entities)
        loose = problem.types[seed % len(problem.types)]
        _same(policy, replace(problem, workers={**problem.workers, loose: workers}), settings, solvers, seed)


@pytest.mark.parametrize("workers", [10**7, 10**10, 10**13])
@pytest.mark.parametrize("solver", LINEAR)
def test_the_level_of_a_job_that_cannot_use_the_type_with_most_gpus(solver: str, workers: int) -> None:
    """An equal split is next to nothing for it. It reaches three times the level of the other job, which has
    2 on the GPU that both can use."""
    fields = {0: {"entity": "e0"}, 1: {"entity": "e1"}}
    entities = (Entity("e0", 1.0), Entity("e1", 3.0))
    problem = given([[2, 1], [1, 0]], [1, workers], fields, entities=entities)
    found = answer("gavel-hierarchical", problem, solver=solver)
    assert found.objective == pytest.approx(8, rel=1e-5)
    assert found.fractions[problem.jobs[1].id,]["t0"] == pytest.approx(6 / workers, rel=1e-5)
    # What is less than the solver's tolerance is none, however many equal splits it is.
    entity = (Entity("e0", policy="fifo"),)
    problem = replace(each(problem, gpus=1, entity="e0"), entities=entity)
    found = answer("gavel-hierarchical", problem, solver=solver)
    assert found.objective == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize("steps", [1e-3, 1e-7, 1e-12])
@pytest.mark.parametrize("solver", LINEAR)
def test_a_job_that_is_almost_done_does_not_fail_the_makespan(solver: str, steps: float) -> None:
    """Two jobs share a GPU: one has so many steps left, the other 10 000. It gets as little as it needs."""
    problem = given([[1], [1]], [1], {0: {"steps_left": steps}, 1: {"steps_left": 1e4}})
    found = answer("gavel-makespan", problem, solver=solver)
    assert found.objective == pytest.approx(1e4, rel=1e-6)
    assert found.fractions[problem.jobs[0].id,]["t0"] == pytest.approx(steps / 1e4, rel=1e-3)


@pytest.mark.parametrize("solver", LINEAR)
def test_a_job_that_next_to_nothing_is_due_has_that(solver: str) -> None:
    """By its weight, or by its deadline: less than LEAST, which is cut where nothing is due."""
    light = given([[1], [1]], [1], {0: {"weight": 1e-9}})
    assert answer("gavel-las", light, solver=solver).objective == pytest.approx(1, rel=1e-6)
    due = given([[1], [3]], [1], {0: {"steps_left": 1.0, "slo_seconds_left": 1e9}}, prices={"t0": 1.0})
    found = answer("gavel-cost-slo", due, solver=solver)
    assert found.fractions[due.jobs[0].id,]["t0"] == pytest.approx(1e-9, rel=1e-3)
    assert found.status == "optimal" and found.objective == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("steps", [1e-3, 1e-7, 1e-12, 1e-15])
@pytest.mark.parametrize("solver", LINEAR)
def test_a_job_that_is_almost_done_does_not_fail_the_deadlines(solver: str, steps: float) -> None:
    """It has so many steps left, the other job of two half of what can be done in time, or far too many."""
    for others, status in ((1.5e4, "optimal"), (1e5, "1 job cannot keep its deadline")):
        fields = {
            0: {"steps_left": steps, "slo_seconds_left": 1e5},
            1: {"steps_left": others, "slo_seconds_left": 1e4},
        }
        problem = given([[1, 3], [3, 1]], [1, 1], fields, prices={"t0": 1.0, "t1": 3.0})
        found = answer("gavel-cost-slo", problem, solver=solver)
        assert found.objective == pytest.approx(3, rel=1e-6) and found.status == status
        one, other = (found.fractions[job.id,] for job in problem.jobs)
        assert one["t1"] == pytest.approx(steps / 1e5 / 3, rel=1e-3)
        assert other["t0"] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("seconds", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("solver", CONES)
def test_finish_times_of_a_job_that_came_long_ago(solver: str, seconds: float) -> None:
    """It has done nothing and has 10 steps left, alone it would do 1 in a second: its ratio is the largest
    as long as it has a GPU to itself."""
    pytest.importorskip(solver)
    fields = {0: {"seconds_so_far": seconds, "isolated_seconds": 0.0}}
    problem = each(given([[1], [1], [1]], [2], fields), steps_left=10.0)
    found = answer("gavel-ftf", problem, solver=solver)
    assert found.objective == pytest.approx((seconds + 10) / 15, rel=1e-6)
    assert found.fractions[problem.jobs[0].id,]["t0"] == pytest.approx(1, rel=1e-4)
