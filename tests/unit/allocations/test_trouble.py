# SPDX-License-Identifier: GPL-2.0-or-later
"""Input that makes no sense, problems without a solution, and solvers that fail, hang or lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.model import JobId
from controller.model.solving import ProblemKind, SolutionStatus
from controller.policies.allocations.allocation import (
    AllocationError,
    AllocationJob,
    Entity,
    Given,
    Pair,
)
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.together import together
from controller.solver.problem_data import Found
from controller.solver.solve import find
from tests.unit.allocations.problems import answer, each, everyday, given
from tests.unit.allocations.test_properties import check_valid

TWO = given([[4, 1], [2, 1]], [1, 1], prices={"t0": 3.0, "t1": 1.0})
TWO = each(TWO, steps_left=100.0)


def job(number: int, **fields: Any) -> AllocationJob:
    return replace(TWO.jobs[0], id=JobId(number), **fields)


WRONG: Mapping[str, tuple[Given, str]] = {
    "no types": (replace(TWO, types=()), "types: there is none"),
    "a type twice": (replace(TWO, types=("t0", "t0", "t1")), "types: 't0' is there twice"),
    "no workers": (replace(TWO, workers={"t0": 0, "t1": 0}), "workers: no type has any"),
    "fewer than none": (replace(TWO, workers={"t0": -1, "t1": 1}), r"workers\.t0: -1 is less than 0"),
    "unknown workers": (replace(TWO, workers={"t9": 1}), "workers: 't9' is none of the types t0, t1"),
    "unknown prices": (replace(TWO, prices={"t9": 1}), "prices: 't9' is none of the types"),
    "unknown base": (replace(TWO, draws_on={"t1": "t9"}), "draws_on: t1 must draw on a type"),
    "an id twice": (replace(TWO, jobs=(job(3), job(3))), "jobs: 3 is there twice"),
    "no gpus": (replace(TWO, jobs=(job(3, gpus=0),)), "job 3: gpus: 0 is less than 1"),
    "no weight": (replace(TWO, jobs=(job(3, weight=0.0),)), "job 3: weight: 0.0 must be above 0"),
    "nan": (
        replace(TWO, jobs=(job(3, throughput={"t0": math.nan}),)),
        r"job 3: throughput\.t0: nan is not a finite number",
    ),
    "negative": (
        replace(TWO, jobs=(job(3, throughput={"t0": -1.0}),)),
        r"job 3: throughput\.t0: -1.0 must be 0 or more",
    ),
    "unknown type": (replace(TWO, jobs=(job(3, throughput={"t9": 1.0}),)), "job 3: throughput: 't9' is none"),
    "steps": (replace(TWO, jobs=(job(3, steps_left=-1.0),)), "job 3: steps_left: -1.0 must be 0 or more"),
    "deadline": (replace(TWO, jobs=(job(3, slo_seconds_left=math.inf),)), "job 3: slo_seconds_left: inf"),
    "entity": (replace(TWO, entities=(Entity("a"),)), "job 0: entity: '' is none of a"),
    "entity twice": (replace(TWO, entities=(Entity("a"), Entity("a"))), "entities: 'a' is there twice"),
    "pair of one": (
        replace(TWO, pairs=(Pair((JobId(0), JobId(0)), {}),)),
        "pair 0, 0: jobs: must be the ids of two of the jobs",
    ),
    "pair of an unknown": (replace(TWO, pairs=(Pair((JobId(0), JobId(7)), {}),)), "pair 0, 7: jobs"),
    "pair on an unknown type": (
        replace(TWO, pairs=(Pair((JobId(0), JobId(1)), {"t9": (1.0, 1.0)}),)),
        "pair 0, 1: throughput: 't9' is none",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_named(what: str) -> None:
    wrong, message = WRONG[what]
    for name in ALLOCATIONS:
        with pytest.raises(AllocationError, match=message):
            answer(name, wrong)


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_jobs_that_can_run_nowhere_get_nothing(name: str) -> None:
    nowhere = job(7, throughput={"t0": 0.0})
    with_it = answer(name, replace(TWO, jobs=(*TWO.jobs, nowhere)))
    assert set(with_it.fractions[JobId(7),].values()) == {0.0}
    assert any(with_it.fractions[JobId(0),].values())
    alone = answer(name, replace(TWO, jobs=(nowhere,)))
    assert alone.objective == 0 and not any(alone.fractions[JobId(7),].values())
    assert answer(name, replace(TWO, jobs=())).fractions == {}


@pytest.mark.parametrize("name", [name for name in ALLOCATIONS if name != "allox"])
def test_a_gang_too_large_for_a_type_is_not_there(name: str) -> None:
    allocated = answer(name, replace(TWO, workers={"t0": 1, "t1": 4}, jobs=(job(0, gpus=2), job(1))))
    assert allocated.fractions[JobId(0),]["t0"] == 0


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_jobs_without_steps_or_time_left(name: str) -> None:
    for left in (0.0, None):
        check_valid(TWO, answer(name, each(TWO, steps_left=left)))


def test_allox_takes_no_gangs() -> None:
    gang = replace(TWO, workers={"t0": 2, "t1": 2}, jobs=(job(0, gpus=2),))
    with pytest.raises(AllocationError, match=r"job 0: gpus: allox takes jobs of one GPU, not of 2"):
        answer("allox", gang)


def test_cost_needs_prices() -> None:
    with pytest.raises(AllocationError, match=r"prices\.t1: a price above 0 is needed"):
        answer("gavel-cost", replace(TWO, prices={"t0": 1.0, "t1": 0.0}))


def test_types_without_workers_need_no_prices() -> None:
    some = replace(TWO, workers={"t0": 1, "t1": 0})
    priced = answer("gavel-cost", some)
    unpriced = answer("gavel-cost", replace(some, prices={"t0": 3.0}))
    assert unpriced.objective == pytest.approx(priced.objective, abs=1e-6)


@pytest.mark.parametrize("name", ["gavel-las", "gavel-cost"])
def test_no_jobs_are_not_jobs_that_can_run_nowhere(name: str) -> None:
    assert answer(name, replace(TWO, jobs=())).status == "there are no jobs"
    nowhere = answer(name, replace(TWO, jobs=(job(7, throughput={}),)))
    assert nowhere.status == "no job can run on any type"


def test_deadlines_that_cannot_be_kept() -> None:
    one = replace(TWO, jobs=(job(3, slo_seconds_left=1.0),))
    assert answer("gavel-cost-slo", one).status == "1 job cannot keep its deadline"
    late = each(TWO, slo_seconds_left=1.0)
    assert answer("gavel-cost-slo", late).status == "2 jobs cannot keep their deadline"
    # One that is past is none.
    assert answer("gavel-cost-slo", each(TWO, slo_seconds_left=-5.0)).status == "optimal"


def test_space_sharing_is_aware() -> None:
    with pytest.raises(ValueError, match='space_sharing needs throughputs = "aware"'):
        answer("gavel-las", TWO, space_sharing=True, throughputs="agnostic")


Spoil = Callable[[Sequence[float]], tuple[SolutionStatus, Sequence[float], str]]


def _status(status: SolutionStatus) -> Spoil:
    return lambda _values: (status, (), "died")


def _values(change: Callable[[Sequence[float]], Sequence[float]]) -> Spoil:
    return lambda values: (SolutionStatus.OPTIMAL, change(values), "")


SPOILED: Mapping[str, tuple[Spoil, str]] = {
    "failed": (_status(SolutionStatus.FAILED), "the solver failed: died"),
    "infeasible": (_status(SolutionStatus.INFEASIBLE), "no solution"),
    "unbounded": (_status(SolutionStatus.UNBOUNDED), "no optimum"),
    "no values": (_values(lambda _values: ()), "0 values for"),
    "nan": (_values(lambda values: (math.nan,) * len(values)), "not finite"),
    "too much": (_values(lambda values: (5.0,) * len(values)), "solver (gave|did)"),
    "below 0": (_values(lambda values: (-5.0,) * len(values)), "solver (answered|did)"),
}
SOLVED = [n for n in ALLOCATIONS if n not in ("isolated", "proportional", "gavel-gandiva", "gavel-sjf")]


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("name", SOLVED)
def test_a_solver_that_fails_or_lies(name: str, how: str) -> None:
    spoil, message = SPOILED[how]
    allocation = ALLOCATIONS[name](AllocationSettings())
    with pytest.raises(AllocationError, match=message):
        allocation.allocate(TWO, lambda kind, data: spoil(find(kind, data)[1]))


class NoCones:
    """A solver that gives up on cones, and on all where it is asked too often."""

    def __init__(self) -> None:
        self.values: list[Sequence[float]] = []
        """What it answered."""

    def __call__(self, kind: ProblemKind, data: Mapping[str, Any]) -> Found:
        if any(name == "second-order" for name, _ in data["cones"]) or len(self.values) >= 60:
            return SolutionStatus.UNSOLVED, [], "gave up"
        found = find(kind, data)
        self.values.append(found[1])
        return found


FTF = ALLOCATIONS["gavel-ftf"](AllocationSettings())


def test_the_search_for_a_finish_time_ends_where_a_ratio_is_too_low_by_the_last_digits() -> None:
    """Its jobs have 1 - 6e-14 times what they need: the next ratio would be the same one for ever."""
    found = FTF.allocate(everyday(183, most_jobs=8), NoCones())
    assert found.objective == pytest.approx(0.9999615172, rel=1e-6)


@pytest.mark.parametrize(("below", "above"), [(1.0, 1.0), (1.0, 1e3), (1e3, 1.0)])
def test_the_search_for_a_finish_time_ends_from_either_end(
    below: float, above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where how many times what they need jobs can have changes so much faster at one end."""

    def bent(*args: Any) -> tuple[Any, float, str]:
        x, times, status = together(*args)
        return x, 1 + (times - 1) * (above if times > 1 else below), status

    problems = [everyday(seed, most_jobs=8) for seed in range(5)]
    expected = [answer("gavel-ftf", problem).objective for problem in problems]
    monkeypatch.setattr("controller.policies.allocations.finish_time.together", bent)
    found = [FTF.allocate(problem, NoCones()).objective for problem in problems]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("gpus", [1, 8])
def test_numbers_of_a_problem_do_not_shrink_with_the_number_of_jobs(gpus: int) -> None:
    """Each has little of the time. The unknown of the problem is 1, and the answer has all its digits."""
    crowd = each(given([[1]] * 1000, [8]), gpus=gpus, steps_left=100.0)
    solve = NoCones()
    found = ALLOCATIONS["gavel-makespan"](AllocationSettings()).allocate(crowd, solve)
    assert solve.values[0][0] == pytest.approx(-1, rel=1e-6)
    assert found.objective == pytest.approx(1e5 * gpus / 8, rel=1e-8)
