# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations as problems: what the solver's process answers is what the allocation says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.model import JobId
from controller.model.solving import Solution, SolutionStatus
from controller.policies.allocations import given_data
from controller.policies.allocations.allocation import (
    AllocationError,
    AllocationJob,
    Asked,
    Entity,
    Given,
    Pair,
)
from controller.policies.allocations.as_problem import AsProblem
from controller.policies.allocations.presets import ALLOCATIONS
from controller.policies.allocations.settings import SETTINGS, GavelLasSettings
from controller.policies.allocations.worker import answers
from controller.settings.policies import PolicySettings
from controller.solver import ImmediateSolver
from controller.solver.solve import find

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


def answer(stated: AsProblem, given: Given) -> Solution:
    solver, asked = ImmediateSolver(answers), stated.begin(given)
    assert isinstance(asked, Asked)
    solver.submit("x", asked.problem, lambda: None)
    return solver.take()["x"]


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_the_answer_is_the_allocation(name: str) -> None:
    settings = PolicySettings(name=name).chosen
    assert settings is not None
    stated = AsProblem(name, settings)
    directly = ALLOCATIONS[name](SETTINGS[name]()).allocate(GIVEN, find)
    found = stated.read(answer(stated, GIVEN))
    for jobs, row in directly.fractions.items():
        assert found[jobs] == pytest.approx(dict(row)), jobs
    assert set(found) >= set(directly.fractions)


def test_pairs_are_in_the_answer() -> None:
    stated = AsProblem("gavel-las", GavelLasSettings(space_sharing=True))
    found = stated.read(answer(stated, GIVEN))
    assert (JobId(1), JobId(4)) in found


def test_what_was_given_reads_back() -> None:
    assert given_data.load(given_data.dump(GIVEN)) == GIVEN


def test_an_allocation_that_cannot_be_says_why() -> None:
    found = answer(AsProblem("gavel-las", SETTINGS["gavel-las"]()), replace(GIVEN, workers={}))
    assert found.status is SolutionStatus.FAILED
    assert found.error == "AllocationError: workers: no type has any; at least one GPU is needed"


@pytest.mark.parametrize("value", [-0.01, 1.5])
def test_fractions_beyond_0_to_1_are_refused(value: float) -> None:
    stated = AsProblem("gavel-las", SETTINGS["gavel-las"]())
    solution = answer(stated, GIVEN)
    with pytest.raises(AllocationError, match="fractions from"):
        stated.read(replace(solution, values=(value, *solution.values[1:])))
