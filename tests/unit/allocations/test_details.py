# SPDX-License-Identifier: GPL-2.0-or-later
"""What single allocations do besides their optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controller.model import JobId
from controller.model.solving import ProblemKind
from controller.policies.allocations.allocation import Jobs, Pair
from controller.policies.allocations.checked import effective
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.random_pairs import RandomPairs
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.shares import isolated_throughputs
from controller.solver.problem_data import Found
from controller.solver.solve import find
from tests.unit.allocations.problems import answer, drawn, each, given

ZERO, ONE, TWO = JobId(0), JobId(1), JobId(2)


def test_allox_leaves_jobs_where_they_run() -> None:
    waiting = given([[1], [1], [1]], [1], {n: {"steps_left": float(9 - n)} for n in range(3)})
    running = replace(waiting, previous={(ZERO,): {"t0": 1.0}})
    assert answer("allox", waiting).fractions[TWO,] == {"t0": 1.0}
    assert answer("allox", running).fractions[ZERO,] == {"t0": 1.0}
    assert answer("allox", running).fractions[TWO,] == {"t0": 0.0}


def test_allox_runs_as_many_jobs_as_there_are_gpus() -> None:
    for seed in range(10):
        problem = drawn(seed, one_gpu=True, most_jobs=12)
        everywhere = each(problem, throughput=dict.fromkeys(problem.types, 1.0))
        found = answer("allox", everywhere)
        begun = sum(sum(row.values()) for row in found.fractions.values())
        assert begun == min(len(problem.jobs), sum(problem.workers.values()))


def test_allox_considers_the_oldest() -> None:
    """With a part considered the shortest job waits, because it is the youngest."""
    waiting = given([[1]] * 4, [1], {n: {"steps_left": float(9 - n)} for n in range(4)})
    assert answer("allox", waiting, considered_fraction=0.5).fractions[ONE,] == {"t0": 1.0}


def test_water_filling_goes_on_after_an_answer_that_is_too_large_by_rounding() -> None:
    def generous(kind: ProblemKind, data: Mapping[str, Any]) -> Found:
        status, values, error = find(kind, data)
        return status, [each * (1 + 1e-5) for each in values], error

    problem = given([[1], [1], [2]], [2])
    allocation = ALLOCATIONS["gavel-hierarchical"](AllocationSettings())
    assert allocation.allocate(problem, generous).objective == pytest.approx(2, rel=1e-4)


def test_random_pairs() -> None:
    pairs = tuple(Pair((JobId(a), JobId(b)), {"t0": (0.8, 0.8)}) for a in range(4) for b in range(a + 1, 4))
    problem = given([[1]] * 4, [2], pairs=pairs)
    assert all(
        len(jobs) == 1 for jobs in answer("gavel-gandiva", replace(problem, workers={"t0": 4})).fractions
    )
    drawn_pairs = {
        frozenset(jobs for jobs in answer("gavel-gandiva", problem, seed=seed).fractions if len(jobs) == 2)
        for seed in range(30)
    }
    assert len(drawn_pairs) == 3 and all(len(found) == 2 for found in drawn_pairs)
    # A pair stays, and so does the other that is left.
    for found in drawn_pairs:
        before: dict[Jobs, dict[str, float]] = {jobs: {"t0": 1.0} for jobs in found}
        again = answer("gavel-gandiva", replace(problem, previous=before), seed=99)
        assert {jobs for jobs in again.fractions if len(jobs) == 2} == found


def test_a_pair_that_does_badly_does_not_stay() -> None:
    problem = given([[1]] * 2, [1], pairs=(Pair((ZERO, ONE), {"t0": (0.4, 0.4)}),))
    good = replace(problem, pairs=(Pair((ZERO, ONE), {"t0": (0.6, 0.6)}),))
    policy = RandomPairs(AllocationSettings())
    assert not policy.good(Layout(problem), problem.pairs[0])
    assert policy.good(Layout(good), good.pairs[0])


def test_weights_of_finish_time_fairness() -> None:
    """The isolated part of a job with twice the weight is twice as large."""
    problem = given([[1], [1]], [1], {0: {"weight": 2.0, "steps_left": 100.0}, 1: {"steps_left": 100.0}})
    found = effective(problem, answer("gavel-ftf", problem).fractions)
    assert found[ZERO] == pytest.approx(2 * found[ONE], rel=1e-5)
    assert isolated_throughputs(Layout(problem)) == pytest.approx([2 / 3, 1 / 3])


def test_a_job_that_does_not_tell_its_steps_has_no_end() -> None:
    problem = given([[1], [1]], [1], {0: {"steps_left": 1e9}})
    told = given([[1], [1]], [1], {0: {"steps_left": 1e9}, 1: {"steps_left": 1e9}})
    untimed = answer("gavel-ftf", problem).objective
    assert untimed == pytest.approx(answer("gavel-ftf", told).objective, rel=1e-5)


def test_shortest_first_takes_the_fastest_free_type() -> None:
    problem = given([[4, 1], [2, 1]], [1, 1], {0: {"steps_left": 400.0}, 1: {"steps_left": 100.0}})
    found = answer("gavel-sjf", problem)
    assert found.fractions[ONE,] == {"t0": 1.0, "t1": 0.0}
    assert found.fractions[ZERO,] == {"t0": 0.0, "t1": 1.0}
    assert found.objective == pytest.approx(50)


def test_agnostic_type() -> None:
    """As fast as on t1 everywhere: the first job then looks as long as the second."""
    problem = given([[4, 1], [1, 1]], [1, 1], {0: {"steps_left": 100.0}, 1: {"steps_left": 100.0}})
    by_fastest = answer("gavel-makespan", problem, throughputs="agnostic").objective
    by_named = answer("gavel-makespan", problem, throughputs="agnostic", agnostic_type="t1").objective
    assert by_fastest == pytest.approx(100) and by_named == pytest.approx(100)
    left = each(problem, steps_left=400.0)
    assert answer("gavel-sjf", left, throughputs="agnostic").objective == pytest.approx(100)
    named = answer("gavel-sjf", left, throughputs="agnostic", agnostic_type="t1").objective
    assert named == pytest.approx(400)


def test_normalised_sum() -> None:
    problem = given([[100], [1]], [1])
    assert answer("gavel-max-throughput", problem).fractions[ZERO,]["t0"] == pytest.approx(1, abs=1e-6)
    weighed = answer("gavel-max-throughput", problem, normalised=True)
    assert weighed.objective == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("solver", ["clarabel", "highs"])
def test_solvers_agree(solver: str) -> None:
    for seed in range(5):
        problem = drawn(seed)
        for name in ("gavel-las", "gavel-makespan", "gavel-hierarchical", "gavel-cost"):
            ours = answer(name, problem, solver=solver).objective
            assert ours == pytest.approx(answer(name, problem).objective, rel=1e-5, abs=1e-6)


def test_more_gpus_never_hurt() -> None:
    problem = drawn(5)
    found = [
        answer(
            "gavel-las", replace(problem, workers={n: k * w for n, w in problem.workers.items()})
        ).objective
        for k in (1, 2, 4)
    ]
    assert all(more >= less - 1e-6 for less, more in pairwise(found))


def test_water_filling_goes_on_after_a_rise_that_came_to_its_end_too_early() -> None:
    """The first answer lets no job be stuck: all can rise, and another rise follows."""
    asked: list[ProblemKind] = []

    def early(kind: ProblemKind, data: Mapping[str, Any]) -> Found:
        status, values, error = find(kind, data)
        asked.append(kind)
        return status, [value * (0.9 if len(asked) == 1 else 1.0) for value in values], error

    problem = given([[1], [1], [2]], [2])
    allocation = ALLOCATIONS["gavel-hierarchical"](AllocationSettings())
    assert allocation.allocate(problem, early).objective == pytest.approx(2, rel=1e-4)


@pytest.mark.parametrize("name", ["gavel-makespan", "gavel-ftf"])
def test_pairs_where_no_job_has_steps_left(name: str) -> None:
    pairs = (Pair((ZERO, ONE), {"t0": (0.9, 0.9)}),)
    done = each(given([[1], [1]], [1], pairs=pairs), steps_left=0.0)
    found = answer(name, done, space_sharing=True)
    assert found.fractions == {(ZERO,): {"t0": 0.5}, (ONE,): {"t0": 0.5}, (ZERO, ONE): {"t0": 0.0}}
