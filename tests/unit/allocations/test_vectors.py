# SPDX-License-Identifier: GPL-2.0-or-later
"""The small cases whose answers can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.model import JobId
from controller.policies.allocations.allocation import Entity, Given, Pair
from controller.policies.allocations.checked import effective
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.shares import isolated
from tests.unit.allocations.problems import answer, each, given, matrix, theirs

A = given([[40, 10], [12, 4], [100, 50]], [1, 1])
B = given([[4, 1], [2, 1]], [1, 1])
PRICED = given([[4, 1], [2, 1]], [1, 1], prices={"t0": 3.1, "t1": 0.8})


def near(expected: object) -> object:
    return pytest.approx(expected, abs=2e-5)


def rows(problem: Given, expected: list[list[float]], name: str, **settings: object) -> float:
    """X is as expected. The objective."""
    allocated = answer(name, problem, **settings)
    assert [near(row) for row in expected] == matrix(problem, allocated)
    return allocated.objective


def test_v1_max_min_fairness() -> None:
    assert rows(A, [[5 / 11, 0], [5 / 11, 1 / 11], [1 / 11, 10 / 11]], "gavel-las") == near(8 / 11)
    rates = effective(A, answer("gavel-las", A).fractions)
    thirds = [sum(job.throughput.values()) / 3 for job in A.jobs]
    assert [rates[job.id] / third for job, third in zip(A.jobs, thirds, strict=True)] == near([12 / 11] * 3)


def test_v2_two_jobs_of_equal_weight() -> None:
    assert rows(B, [[0.5, 0.5], [0.5, 0.5]], "gavel-las") == near(1)


def test_v3_weights() -> None:
    weighted = given([[4, 1], [2, 1]], [1, 1], {0: {"weight": 2.0}})
    assert rows(weighted, [[17 / 19, 2 / 19], [2 / 19, 17 / 19]], "gavel-las") == near(14 / 19)


def test_v4_equal_gpu_time() -> None:
    gangs = given([[1]] * 5, [4], {0: {"gpus": 4}})
    rows(gangs, [[0.2], [0.8], [0.8], [0.8], [0.8]], "gavel-las")


def test_v5_makespan() -> None:
    left = each(B, steps_left=400.0)
    assert rows(left, [[0.25, 0.75], [0.75, 0.25]], "gavel-makespan") == near(1600 / 7)
    reference = theirs("gavel-makespan", left)
    assert reference.objective == pytest.approx(1600 / 7, rel=0.05)


def test_v6_makespan_of_three() -> None:
    left = given(
        [[40, 10], [12, 4], [100, 50]],
        [1, 1],
        {0: {"steps_left": 400.0}, 1: {"steps_left": 120.0}, 2: {"steps_left": 1000.0}},
    )
    assert rows(left, [[0.5, 0], [0.5, 0], [0, 1]], "gavel-makespan") == near(20)


def test_v7_the_largest_sum() -> None:
    assert rows(B, [[1, 0], [0, 1]], "gavel-max-throughput") == near(5)


def test_v8_cost_as_in_gavels_code() -> None:
    assert theirs("gavel-cost", PRICED).objective == near(4 / 3.1 + 1 / 0.8)


def test_v10_the_true_ratio() -> None:
    assert rows(PRICED, [[1, 0], [0, 0]], "gavel-cost") == near(4 / 3.1)


def test_v12_finish_time_fairness() -> None:
    left = each(B, steps_left=400.0)
    assert rows(left, [[0.5, 0.5], [0.5, 0.5]], "gavel-ftf") == near(1)


def test_v13_finish_time_fairness_later() -> None:
    later = given(
        [[4, 1], [2, 1]],
        [1, 1],
        {
            number: {"steps_left": 300.0, "seconds_so_far": 100.0, "isolated_seconds": isolated_seconds}
            for number, isolated_seconds in enumerate((40.0, 200 / 3))
        },
    )
    objective = rows(later, [[0.69157, 0.30843], [0.30843, 0.69157]], "gavel-ftf")
    assert objective == near(1.23481)


def test_v14_first_come() -> None:
    assert rows(A, [[1, 0], [0, 1], [0, 0]], "gavel-fifo") == near(11 / 3)
    assert theirs("gavel-fifo", A).objective == near(11 / 3)


@pytest.mark.parametrize(
    ("together", "least", "packed"), [((0.7, 0.7), 0.7, 1), ((0.4, 0.5), 0.5, 0), ((0.9, 0.3), 0.5625, 0.625)]
)
def test_v15_space_sharing(together: tuple[float, float], least: float, packed: float) -> None:
    jobs = JobId(0), JobId(1)
    problem = given([[1], [1]], [1], pairs=(Pair(jobs, {"t0": together}),))
    allocated = answer("gavel-las", problem, space_sharing=True)
    assert allocated.objective == near(least)
    assert allocated.fractions.get(jobs, {"t0": 0})["t0"] == near(packed)
    if packed == 0.625:
        assert matrix(problem, allocated) == [near([0]), near([0.375])]


def test_v16_allox() -> None:
    waiting = given([[1], [1]], [1], {0: {"steps_left": 4.0}, 1: {"steps_left": 2.0}})
    assert rows(waiting, [[0], [1]], "allox") == near(8)


def test_v19_water_filling() -> None:
    problem = replace(
        given([[1]] * 3, [2], {0: {"entity": "a"}, 1: {"entity": "a"}, 2: {"entity": "b"}}),
        entities=(Entity("a", 1.0), Entity("b", 2.0)),
    )
    rows(problem, [[0.5], [0.5], [1]], "gavel-hierarchical")


def test_v19_water_filling_with_a_queue() -> None:
    entity = {0: "a", 1: "a", 2: "b", 3: "b"}
    problem = replace(
        given([[1]] * 4, [2], {number: {"entity": name} for number, name in entity.items()}),
        entities=(Entity("a", 1.0, "fifo"), Entity("b", 2.0)),
    )
    rows(problem, [[2 / 3], [0], [2 / 3], [2 / 3]], "gavel-hierarchical")


def test_v20_strategy_proof() -> None:
    two = given([[1], [1]], [1])
    assert rows(two, [[0.25], [0.25]], "gavel-strategy-proof") == near(0.5)


def test_v22_isolated() -> None:
    gangs = given([[1, 1]] * 3, [4, 4], {1: {"gpus": 2}, 2: {"gpus": 4}})
    expected = [{"t0": 0.5, "t1": 0.5}, {"t0": 0.5, "t1": 0.5}, {"t0": 1 / 3, "t1": 1 / 3}]
    assert [near(row) for row in expected] == [
        dict(zip(gangs.types, row, strict=True)) for row in isolated(Layout(gangs)).tolist()
    ]
    rows(gangs, [[0.5, 0.5], [0.5, 0.5], [1 / 3, 1 / 3]], "isolated")
