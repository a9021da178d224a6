# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations as problems: what the solver's process answers is what the allocation says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.model import JobId
from controller.model.solving import Solution, SolutionStatus
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import (
    Allocated,
    AllocationError,
    AllocationJob,
    Entity,
    Given,
    Jobs,
    Pair,
    Solve,
)
from controller.policies.allocations.as_problem import AsProblem, check_values
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import KEYS, AllocationSettings
from controller.policies.allocations.shares import Proportional
from controller.policies.allocations.table import FractionTable
from controller.policies.allocations.worker import answers
from controller.settings.policies import PolicySettings
from controller.solver import ImmediateSolver
from controller.solver.solve import find
from tests.unit.allocations.problems import drawn

TABLE = {1: (40.0, 10.0), 4: (12.0, 4.0), 7: (100.0, 50.0), 8: (3.0, 2.0)}
GIVEN = Given(
    types=("v100", "k80"),
    workers={"v100": 1, "k80": 2},
    prices={"v100": 3.1, "k80": 0.8},
    jobs=tuple(
        AllocationJob(
            id=JobId(number),
            weight=1.0 + number % 3,
            throughput=dict(zip(("v100", "k80"), rates, strict=True)),
            steps_left=1000.0,
            steps_done=50.0,
            seconds_so_far=100.0,
            slo_seconds_left=5000.0 if number == 4 else None,
            arrival=float(number),
            entity="a" if number < 5 else "b",
        )
        for number, rates in TABLE.items()
    ),
    pairs=(Pair((JobId(1), JobId(4)), {"v100": (30.0, 9.0)}),),
    entities=(Entity("a"), Entity("b", 2.0, "fifo")),
    previous={(JobId(1),): {"v100": 1.0, "k80": 0.0}},
)


def by_type(table: FractionTable) -> dict[Jobs, dict[str, float]]:
    rows = zip(*[iter(table.fractions)] * len(table.types), strict=True)
    return {
        jobs: dict(zip(table.types, row, strict=True)) for jobs, row in zip(table.jobs, rows, strict=True)
    }


def answer(stated: AsProblem, given: Given) -> Solution:
    solver = ImmediateSolver(answers)
    solver.submit("x", stated.begin(given), lambda: None)
    return solver.take()["x"]


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_the_answer_is_the_allocation(name: str) -> None:
    stated = AsProblem(name, PolicySettings(name=name).allocation)
    directly = ALLOCATIONS[name](AllocationSettings()).allocate(GIVEN, find)
    found = by_type(stated.read(answer(stated, GIVEN)))
    for jobs, row in directly.fractions.items():
        assert found[jobs] == pytest.approx(dict(row), abs=1e-6), jobs
    assert set(found) >= set(directly.fractions)


def test_pairs_are_in_the_answer() -> None:
    stated = AsProblem("gavel-las", AllocationSettings(space_sharing=True))
    found = stated.read(answer(stated, GIVEN))
    assert (JobId(1), JobId(4)) in found.jobs


def test_what_was_given_reads_back() -> None:
    assert given_data.load(given_data.dump(GIVEN)) == GIVEN


def test_an_allocation_that_cannot_be_says_why() -> None:
    found = answer(AsProblem("gavel-las", AllocationSettings()), replace(GIVEN, workers={}))
    assert found.status is SolutionStatus.FAILED
    assert found.error == "AllocationError: workers: no type has any; at least one GPU is needed"


def test_in_rounds_gangs_are_left_out_of_the_assignment() -> None:
    gang = replace(GIVEN.jobs[0], id=JobId(9), gpus=2)
    stated = AsProblem("allox", AllocationSettings())
    found = by_type(stated.read(answer(stated, replace(GIVEN, jobs=(*GIVEN.jobs, gang)))))
    assert found.pop((gang.id,)) == {"v100": 0.0, "k80": 0.0}
    assert found == by_type(stated.read(answer(stated, GIVEN)))
    assert stated.read(answer(stated, replace(GIVEN, jobs=(gang,), pairs=(), previous={}))).jobs


@pytest.mark.parametrize("value", [-0.01, 1.5])
def test_fractions_beyond_0_to_1_are_refused(value: float) -> None:
    with pytest.raises(AllocationError, match="fractions from"):
        check_values(GIVEN, [value, *[0.0] * 9], one_gpu=False)


GANGS = replace(
    GIVEN,
    types=("v100", "k80", "v100 scattered"),
    draws_on={"v100 scattered": "v100"},
    jobs=tuple(replace(job, gpus=2) for job in GIVEN.jobs[:2]),
    workers={"v100": 3, "k80": 2},
)
MORE = "more GPUs of type {} than there are: {} instead of {}"
LIES: dict[str, tuple[Given, list[float], str]] = {
    "time": (GIVEN, [0.6, 0.6, *[0.0] * 8], "job 1 more than all its time: 1.2"),
    "time in a pair": (GIVEN, [*[0.0] * 3, 0.6, *[0.0] * 5, 0.5], "job 4 more than all its time: 1.1"),
    "GPUs": (GIVEN, [1.0, 0.0] * 4 + [0.0, 0.0], MORE.format("v100", 4, 1)),
    "GPUs of gangs": (GANGS, [0.0, 1.0, 0.0, 0.0, 0.5, *[0.0] * 4], MORE.format("k80", 3, 2)),
    "GPUs of two types": (GANGS, [1.0, *[0.0] * 4, 1.0, *[0.0] * 3], MORE.format("v100", 4, 3)),
    "nothing": (GIVEN, [0.0] * 10, "no job any time"),
}


@pytest.mark.parametrize("what", LIES)
def test_an_answer_that_cannot_be_is_refused(what: str) -> None:
    given, values, message = LIES[what]
    with pytest.raises(AllocationError, match=f"the solver gave {message}"):
        check_values(given, values, one_gpu=False)


def test_an_answer_that_cannot_be_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Liar(Proportional):
        def __init__(self, _settings: AllocationSettings) -> None:
            """A policy that gives every job all of a type."""

        def allocate(self, given: Given, solve: Solve) -> Allocated:
            allocated = super().allocate(given, solve)
            return replace(allocated, fractions={jobs: {"v100": 1.0} for jobs in allocated.fractions})

    monkeypatch.setitem(ALLOCATIONS, "proportional", Liar)
    found = answer(AsProblem("proportional", AllocationSettings()), GIVEN)
    assert (found.status, found.values) == (SolutionStatus.FAILED, ())
    assert found.error == "AllocationError: the solver gave " + MORE.format("v100", 4, 1)


@pytest.mark.parametrize("throughput", [{}, {"v100": 1.0}])
def test_nothing_is_an_answer_where_no_job_can_run(throughput: dict[str, float]) -> None:
    """The gangs have two GPUs, and there is one of the type."""
    gangs = tuple(replace(job, gpus=2, throughput=throughput) for job in GIVEN.jobs)
    stated, given = AsProblem("gavel-las", AllocationSettings()), replace(GIVEN, jobs=gangs)
    assert not any(answer(stated, given).values)
    stated.read(answer(stated, given))


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_no_answer_of_an_allocation_is_refused(name: str) -> None:
    keys = KEYS[name]
    some: list[dict[str, Any]] = [{}]
    some += [{"throughputs": "agnostic"}] if "throughputs" in keys else []
    some += [{"space_sharing": True}] if "space_sharing" in keys else []
    for options in some:
        stated = AsProblem(name, AllocationSettings.model_validate(options))
        for seed in range(20):
            stated.read(answer(stated, drawn(seed, pairs=True)))
