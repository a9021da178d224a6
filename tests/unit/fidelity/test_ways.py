# SPDX-License-Identifier: GPL-2.0-or-later
"""What Gavel's code does besides its optimum, or instead of one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.fidelity.gavel_ways.allocations import WAYS, AnyPairs, FinishTime
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from benchmarks.fidelity.gavel_ways.solvers import least_queues
from controller.model import JobId
from controller.model.solving import SolutionStatus
from controller.policies.allocations.allocation import Allocated, AllocationError, Pair, Solve
from controller.policies.allocations.checked import effective
from controller.policies.allocations.random_pairs import RandomPairs
from controller.policies.allocations.settings import AllocationSettings
from controller.solver.problem_data import Found
from tests.unit.allocations.problems import answer, drawn, each, given, theirs

ZERO, ONE, TWO = JobId(0), JobId(1), JobId(2)
PAIR = each(given([[2, 1], [2, 1]], [1, 1], prices={"t0": 2.0, "t1": 1.0}), steps_left=100.0)


def test_allox_reaches_the_same_sum() -> None:
    """What the queues do not say: their first jobs run, the longest of each."""
    waiting = given([[1], [1], [1]], [1], {n: {"steps_left": float(9 - n)} for n in range(3)})
    found = theirs("allox", waiting).fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [0, 0, 1]
    running = replace(waiting, previous={(ZERO,): {"t0": 1.0}})
    found = theirs("allox", running).fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [1, 0, 0]


def test_allox_runs_jobs_on_their_types() -> None:
    """Two jobs, two types: the sum is least where each is on its fast one."""
    pair = given([[1, 9], [9, 1]], [1, 1], {n: {"steps_left": 90.0} for n in range(2)})
    found = theirs("allox", pair).fractions
    assert found == {(ZERO,): {"t0": 0.0, "t1": 1.0}, (ONE,): {"t0": 1.0, "t1": 0.0}}


def test_first_come_passes_over_a_job_that_cannot_run_on_what_is_left() -> None:
    queue = given([[1, 1], [1, 0], [1, 1]], [1, 1])
    found = theirs("gavel-fifo", queue).fractions
    assert found[ZERO,] == {"t0": 1.0, "t1": 0.0}
    assert found[ONE,] == {"t0": 0.0, "t1": 0.0}
    assert found[TWO,] == {"t0": 0.0, "t1": 1.0}


def test_first_come_stops_at_the_first_that_does_not_fit() -> None:
    queue = given([[1], [1], [1]], [4], {0: {"gpus": 2}, 1: {"gpus": 4}})
    found = theirs("gavel-fifo", queue).fractions
    assert [found[job,]["t0"] for job in (ZERO, ONE, TWO)] == [1, 0, 0]


def test_first_come_packs() -> None:
    pairs = tuple(Pair((JobId(n), TWO), {"t0": rates}) for n, rates in enumerate([(0.8, 0.8), (0.9, 0.9)]))
    queue = given([[1], [1], [1]], [2], pairs=pairs)
    options = {"space_sharing": True}
    assert theirs("gavel-fifo", queue, **options).fractions[ONE, TWO] == {"t0": 1.0}
    assert (ONE, TWO) not in theirs("gavel-fifo", queue, **options, pack_gain_ratio=1.9).fractions


def test_first_come_packs_those_behind_the_one_that_does_not_fit() -> None:
    """That one has no part in this allocation, though it could join a job that runs."""
    pairs = tuple(Pair((ZERO, other), {"t0": (0.9, 0.9)}) for other in (ONE, TWO))
    queue = given([[1], [1], [1]], [3], {n: {"gpus": 2} for n in range(3)}, pairs=pairs)
    options = {"space_sharing": True}
    found = theirs("gavel-fifo", queue, **options).fractions
    assert found[ZERO, TWO] == {"t0": 1.0}
    assert (ZERO, ONE) not in found and found[ONE,] == {"t0": 0.0}
    full = replace(queue, workers={"t0": 2})
    assert theirs("gavel-fifo", full, **options).fractions[ZERO, ONE] == {"t0": 1.0}


def test_first_come_keeps_what_runs_where_agnostic() -> None:
    queue = given([[1, 1]] * 3, [1, 1])
    options = {"throughputs": "agnostic"}
    running = replace(queue, previous={(TWO,): {"t0": 1.0}})
    found = theirs("gavel-fifo", running, **options).fractions
    assert found[TWO,]["t0"] == 1 and found[ZERO,]["t1"] == 1
    ended = replace(queue, previous={(JobId(9),): {"t0": 1.0}})
    assert theirs("gavel-fifo", ended, **options).fractions[ZERO,]["t0"] == 1


def test_agnostic_first_come_draws_the_type_that_is_no_longer_there() -> None:
    """Each has the last type. With it used up one of both goes: the next has the other one, or nothing."""
    queue = given([[1, 1]] * 3, [1, 1])
    options = {"throughputs": "agnostic"}
    found = [theirs("gavel-fifo", queue, **options, seed=seed).fractions for seed in range(20)]
    assert all(rows[ZERO,] == {"t0": 0.0, "t1": 1.0} for rows in found)
    assert {tuple(rows[ONE,].values()) for rows in found} == {(1.0, 0.0), (0.0, 0.0)}
    # It need not fit.
    gang = given([[1, 1]] * 2, [2, 1], {0: {"gpus": 2}})
    assert theirs("gavel-fifo", gang, **options).fractions[ZERO,] == {"t0": 0.0, "t1": 1.0}


def test_gavel_draws_pairs_of_which_some_come_to_nothing() -> None:
    """Two of the three jobs have the same size. Drawing any two three times does not always find them."""
    pairs = (Pair((ZERO, TWO), {"t0": (0.8, 0.8)}),)
    problem = given([[1]] * 3, [2], {1: {"gpus": 2}}, pairs=pairs)

    def paired(whose: Callable[..., Allocated]) -> int:
        drawn_keys = [whose("gavel-gandiva", problem, seed=seed).fractions for seed in range(60)]
        return sum((ZERO, TWO) in found for found in drawn_keys)

    assert paired(answer) == 60
    assert 30 < paired(theirs) < 55  # 1 - (2/3)³ of 60 is 42


def test_a_pair_does_not_stay_where_one_of_it_stands_still_on_a_type() -> None:
    problem = given([[1, 1]] * 2, [1, 1], pairs=(Pair((ZERO, ONE), {"t0": (0.9, 0.9), "t1": (0.0, 0.9)}),))
    for policy, stays in ((RandomPairs(AllocationSettings()), True), (AnyPairs(WaySettings()), False)):
        assert policy.good(policy.layout(problem), problem.pairs[0]) is stays


def test_weights_do_not_count_for_the_isolated_part() -> None:
    problem = given([[1], [1]], [1], {0: {"weight": 2.0, "steps_left": 100.0}, 1: {"steps_left": 100.0}})
    found = effective(problem, theirs("gavel-ftf", problem).fractions)
    assert found[ZERO] == pytest.approx(found[ONE], rel=1e-5)
    rates = FinishTime(WaySettings()).isolated_rates(problem)
    assert rates == pytest.approx({ZERO: 1 / 2, ONE: 1 / 2})


@pytest.mark.parametrize("name", ["gavel-las", "gavel-ftf", "gavel-makespan", "gavel-max-throughput"])
def test_ecos(name: str) -> None:
    """It finds the same objective."""
    pytest.importorskip("ecos")
    for seed in range(5):
        problem = drawn(seed, pairs=True)
        sharing = bool(seed % 2)
        one = answer(name, problem, space_sharing=sharing)
        other = answer(name, problem, space_sharing=sharing, solver="ecos")
        assert other.objective == pytest.approx(one.objective, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("sharing", [False, True])
def test_ways_reach_the_same_optimum(sharing: bool) -> None:
    """Where every gang fits everywhere they differ in the form alone."""
    for seed in range(5):
        problem = each(drawn(seed, pairs=True), gpus=1, weight=1.0)
        for name, within in (("gavel-las", 1e-5), ("gavel-ftf", 1e-5), ("gavel-makespan", 0.06)):
            exact = answer(name, problem, space_sharing=sharing).objective
            if name == "gavel-makespan" and exact < 100:
                continue  # below the range of the reference's search
            reference = theirs(name, problem, space_sharing=sharing).objective
            assert reference == pytest.approx(exact, rel=within), (name, seed)


def test_deadlines_that_cannot_be_kept_are_dropped() -> None:
    late = each(PAIR, slo_seconds_left=1.0)
    assert theirs("gavel-cost-slo", late).status == "without deadlines"


def test_makespan_beyond_its_range() -> None:
    long = each(PAIR, steps_left=3e7)
    exact = answer("gavel-makespan", long)
    reference = theirs("gavel-makespan", long)
    assert reference.objective == pytest.approx(exact.objective, rel=0.06)


def answering(found: Found) -> Solve:
    """A solver that answers this, whatever it is asked."""
    return lambda _kind, _data: found


def test_finish_times_fall_back_where_the_solver_finds_nothing() -> None:
    ftf, makespan = (WAYS[name](WaySettings()) for name in ("gavel-ftf", "gavel-makespan"))
    for status in (SolutionStatus.INFEASIBLE, SolutionStatus.UNBOUNDED, SolutionStatus.UNSOLVED):
        found: Found = status, [], "gave up"
        assert ftf.allocate(PAIR, answering(found)).status == "isolated"
        with pytest.raises(AllocationError, match="do not end within any time"):
            makespan.allocate(PAIR, answering(found))


def test_gangs_are_left_out_of_the_assignment() -> None:
    with_gang = given([[1], [1]], [2], {0: {"gpus": 2}, 1: {"steps_left": 5.0}})
    assert theirs("allox", with_gang).fractions == {(ZERO,): {"t0": 0.0}, (ONE,): {"t0": 1.0}}


def test_a_solver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ecos", None)
    with pytest.raises(AllocationError, match="pip install ecos"):
        theirs("gavel-las", PAIR, solver="ecos")


@pytest.mark.parametrize("flag", [-1, -2, -3, -7])
def test_ecos_that_gives_up_has_no_answer(flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1: too many iterations. -2, -3: numbers that it cannot go on with."""
    ecos = SimpleNamespace(solve=lambda *_args, **_options: {"info": {"exitFlag": flag}})
    monkeypatch.setitem(sys.modules, "ecos", ecos)
    with pytest.raises(AllocationError, match=f"ECOS: exit flag {flag}"):
        theirs("gavel-las", PAIR, solver="ecos")


def test_queues_have_the_least_sum() -> None:
    """One machine: the shortest job is the third from the end. Two: each job is on its fast one."""
    assert least_queues([[3.0], [1.0], [2.0]], [0.0, 5.0, 0.0]) == [0, 2, 1]
    assert least_queues([[9.0, 1.0], [1.0, 9.0]], [0.0, 0.0]) == [1, 0]
