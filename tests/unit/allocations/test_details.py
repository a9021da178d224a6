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
from controller.policies.allocations.settings import GavelGandivaSettings, GavelHierarchicalSettings
from controller.policies.allocations.shares import isolated_rates
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


def test_allox_of_the_reference_reaches_the_same_sum() -> None:
    """What the queues do not say: their first jobs run, the longest of each."""
    waiting = given([[1], [1], [1]], [1], {n: {"steps_left": float(9 - n)} for n in range(3)})
    found = answer("allox", waiting, formulation="reference").fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [0, 0, 1]
    running = replace(waiting, previous={(ZERO,): {"t0": 1.0}})
    found = answer("allox", running, formulation="reference").fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [1, 0, 0]


def test_allox_of_the_reference_runs_jobs_on_their_types() -> None:
    """Two jobs, two types: the sum is least where each is on its fast one."""
    pair = given([[1, 9], [9, 1]], [1, 1], {n: {"steps_left": 90.0} for n in range(2)})
    found = answer("allox", pair, formulation="reference").fractions
    assert found == {(ZERO,): {"t0": 0.0, "t1": 1.0}, (ONE,): {"t0": 1.0, "t1": 0.0}}


def test_first_come_of_the_reference_passes_over_a_job_that_cannot_run_on_what_is_left() -> None:
    queue = given([[1, 1], [1, 0], [1, 1]], [1, 1])
    found = answer("gavel-fifo", queue, formulation="reference").fractions
    assert found[ZERO,] == {"t0": 1.0, "t1": 0.0}
    assert found[ONE,] == {"t0": 0.0, "t1": 0.0}
    assert found[TWO,] == {"t0": 0.0, "t1": 1.0}


def test_first_come_of_the_reference_stops_at_the_first_that_does_not_fit() -> None:
    queue = given([[1], [1], [1]], [4], {0: {"gpus": 2}, 1: {"gpus": 4}})
    found = answer("gavel-fifo", queue, formulation="reference").fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [1, 0, 0]


def test_first_come_of_the_reference_packs() -> None:
    pairs = tuple(Pair((JobId(n), TWO), {"t0": rates}) for n, rates in enumerate([(0.8, 0.8), (0.9, 0.9)]))
    queue = given([[1], [1], [1]], [2], pairs=pairs)
    options = {"formulation": "reference", "space_sharing": True}
    assert answer("gavel-fifo", queue, **options).fractions[ONE, TWO] == {"t0": 1.0}
    assert (ONE, TWO) not in answer("gavel-fifo", queue, **options, pack_gain_ratio=1.9).fractions


def test_first_come_of_the_reference_packs_those_behind_the_one_that_does_not_fit() -> None:
    """That one has no part in this allocation, though it could join a job that runs."""
    pairs = tuple(Pair((ZERO, other), {"t0": (0.9, 0.9)}) for other in (ONE, TWO))
    queue = given([[1], [1], [1]], [3], {n: {"gpus": 2} for n in range(3)}, pairs=pairs)
    options = {"formulation": "reference", "space_sharing": True}
    found = answer("gavel-fifo", queue, **options).fractions
    assert found[ZERO, TWO] == {"t0": 1.0}
    assert (ZERO, ONE) not in found and found[ONE,] == {"t0": 0.0}
    full = replace(queue, workers={"t0": 2})
    assert answer("gavel-fifo", full, **options).fractions[ZERO, ONE] == {"t0": 1.0}


def test_first_come_of_the_reference_keeps_what_runs_where_agnostic() -> None:
    queue = given([[1, 1]] * 3, [1, 1])
    options = {"formulation": "reference", "throughputs": "agnostic"}
    running = replace(queue, previous={(TWO,): {"t0": 1.0}})
    found = answer("gavel-fifo", running, **options).fractions
    assert found[TWO,]["t0"] == 1 and found[ZERO,]["t1"] == 1
    ended = replace(queue, previous={(JobId(9),): {"t0": 1.0}})
    assert answer("gavel-fifo", ended, **options).fractions[ZERO,]["t0"] == 1


def test_agnostic_first_come_of_the_reference_draws_the_type_that_is_no_longer_there() -> None:
    """Each has the last type. With it used up one of both goes: the next has the other one, or nothing."""
    queue = given([[1, 1]] * 3, [1, 1])
    options = {"formulation": "reference", "throughputs": "agnostic"}
    found = [answer("gavel-fifo", queue, **options, seed=seed).fractions for seed in range(20)]
    assert all(rows[ZERO,] == {"t0": 0.0, "t1": 1.0} for rows in found)
    assert {tuple(rows[ONE,].values()) for rows in found} == {(1.0, 0.0), (0.0, 0.0)}
    # It need not fit.
    gang = given([[1, 1]] * 2, [2, 1], {0: {"gpus": 2}})
    assert answer("gavel-fifo", gang, **options).fractions[ZERO,] == {"t0": 0.0, "t1": 1.0}


@pytest.mark.parametrize("formulation", ["exact", "reference"])
def test_water_filling_goes_on_after_an_answer_that_is_too_large_by_rounding(formulation: Any) -> None:
    def generous(kind: ProblemKind, data: Mapping[str, Any]) -> Found:
        status, values, error = find(kind, data)
        return status, [each * (1 + 1e-5) for each in values], error

    problem = given([[1], [1], [2]], [2])
    allocation = ALLOCATIONS["gavel-hierarchical"](GavelHierarchicalSettings(formulation=formulation))
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
    policy = RandomPairs(GavelGandivaSettings())
    assert not policy._good(Layout(problem), problem.pairs[0])
    assert policy._good(Layout(good), good.pairs[0])


def test_the_reference_draws_pairs_of_which_some_come_to_nothing() -> None:
    """Two of the three jobs have the same size. Drawing any two three times does not always find them."""
    pairs = (Pair((ZERO, TWO), {"t0": (0.8, 0.8)}),)
    problem = given([[1]] * 3, [2], {1: {"gpus": 2}}, pairs=pairs)

    def paired(formulation: str) -> int:
        drawn_keys = [
            answer("gavel-gandiva", problem, seed=seed, formulation=formulation).fractions
            for seed in range(60)
        ]
        return sum((ZERO, TWO) in found for found in drawn_keys)

    assert paired("exact") == 60
    assert 30 < paired("reference") < 55  # 1 - (2/3)³ of 60 is 42


def test_a_pair_of_the_reference_does_not_stay_where_one_of_it_stands_still_on_a_type() -> None:
    problem = given([[1, 1]] * 2, [1, 1], pairs=(Pair((ZERO, ONE), {"t0": (0.9, 0.9), "t1": (0.0, 0.9)}),))
    for formulation, stays in (("exact", True), ("reference", False)):
        policy = RandomPairs(GavelGandivaSettings(formulation=formulation))  # type: ignore[arg-type]
        assert policy._good(Layout(problem, exact=formulation == "exact"), problem.pairs[0]) is stays


def test_weights_of_finish_time_fairness() -> None:
    """The isolated part of a job with twice the weight is twice as large; in Gavel's code it is not."""
    problem = given([[1], [1]], [1], {0: {"weight": 2.0, "steps_left": 100.0}, 1: {"steps_left": 100.0}})
    found = effective(problem, answer("gavel-ftf", problem).fractions)
    assert found[ZERO] == pytest.approx(2 * found[ONE], rel=1e-5)
    reference = effective(problem, answer("gavel-ftf", problem, formulation="reference").fractions)
    assert reference[ZERO] == pytest.approx(reference[ONE], rel=1e-5)
    assert isolated_rates(Layout(problem)) == pytest.approx({ZERO: 2 / 3, ONE: 1 / 3})


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


@pytest.mark.parametrize("name", ["gavel-las", "gavel-ftf", "gavel-makespan", "gavel-max-throughput"])
def test_ecos(name: str) -> None:
    """Optional: the reference's solver finds the same objective."""
    pytest.importorskip("ecos")
    for seed in range(5):
        problem = drawn(seed, pairs=True)
        sharing = bool(seed % 2)
        ours = answer(name, problem, space_sharing=sharing)
        theirs = answer(name, problem, space_sharing=sharing, solver="ecos")
        assert theirs.objective == pytest.approx(ours.objective, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("sharing", [False, True])
def test_reference_formulations_reach_the_same_optimum(sharing: bool) -> None:
    """Where every gang fits everywhere they differ in the form alone."""
    for seed in range(5):
        problem = each(drawn(seed, pairs=True), gpus=1, weight=1.0)
        for name, within in (("gavel-las", 1e-5), ("gavel-ftf", 1e-5), ("gavel-makespan", 0.06)):
            exact = answer(name, problem, space_sharing=sharing).objective
            if name == "gavel-makespan" and exact < 100:
                continue  # below the range of the reference's search
            reference = answer(name, problem, space_sharing=sharing, formulation="reference").objective
            assert reference == pytest.approx(exact, rel=within), (name, seed)


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
    allocation = ALLOCATIONS["gavel-hierarchical"](GavelHierarchicalSettings())
    assert allocation.allocate(problem, early).objective == pytest.approx(2, rel=1e-4)


@pytest.mark.parametrize("name", ["gavel-makespan", "gavel-ftf"])
def test_pairs_where_no_job_has_steps_left(name: str) -> None:
    pairs = (Pair((ZERO, ONE), {"t0": (0.9, 0.9)}),)
    done = each(given([[1], [1]], [1], pairs=pairs), steps_left=0.0)
    found = answer(name, done, space_sharing=True)
    assert found.fractions == {(ZERO,): {"t0": 0.5}, (ONE,): {"t0": 0.5}, (ZERO, ONE): {"t0": 0.0}}
