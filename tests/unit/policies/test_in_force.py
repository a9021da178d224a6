# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of fractions that rounds keep, and what earlier allocations still owe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.model import JobId
from controller.policies.allocations.allocation import Fractions
from controller.policies.allocations.table import FractionTable, tabulated
from controller.policies.mechanisms.rounds.in_force import ALONE, InForce

ONE, TWO, THREE = map(JobId, (1, 2, 3))
V100, K80 = ("v100", ALONE), ("k80", ALONE)


def table(fractions: Fractions, types: tuple[str, ...] = ("k80", "v100")) -> FractionTable:
    return tabulated(fractions, types)


def made(*allocations: Fractions, every_seconds: float = 100.0) -> InForce:
    """Allocations that follow one another, the first at 0 s."""
    found = InForce(None)
    for number, fractions in enumerate(allocations):
        found.take(table(fractions), number * every_seconds, {ONE, TWO, THREE})
    return found


def test_what_is_due_is_counted_over_all_allocations_since_the_reset() -> None:
    found = made({(ONE,): {"v100": 0.5, "k80": 0.1}}, {(ONE,): {"v100": 1.0}})
    assert found.due(150.0, 150.0)(ONE) == {V100: 50.0 + 50.0, K80: 10.0}
    found.reset(150.0)
    assert found.due(20.0, 170.0)(ONE) == {V100: 20.0}


def test_what_is_due_over_other_types_is_by_their_names() -> None:
    """Also of a type that is not in the next allocation: until the next reset."""
    found = made({(ONE,): {"v100": 0.5, "k80": 0.1}})
    found.take(table({(ONE,): {"p100": 1.0}}, ("p100", "v100")), 100.0, {ONE})
    assert found.due(110.0, 110.0)(ONE) == {V100: 50.0, K80: 10.0, ("p100", ALONE): 10.0}
    found.reset(110.0)
    found.take(table({(ONE,): {"p100": 1.0}}, ("p100", "v100")), 120.0, {ONE})
    assert found.types == ("p100", "v100")


def test_jobs_that_have_ended_are_forgotten_also_while_no_allocation_comes() -> None:
    found = InForce(None)
    for number in range(1, 9):
        found.take(table({(JobId(number),): {"v100": 1.0}}), float(number), {JobId(number)}, counted=False)
    assert list(found.rows) == [(8,)] and found.remembered()["uncounted"] == [8]


def test_a_job_that_an_allocation_does_not_count_keeps_its_fractions_while_it_is_there() -> None:
    found = made({(ONE,): {"v100": 0.5}, (TWO,): {"k80": 0.5}}, {(TWO,): {"v100": 0.25}})
    assert (found.of(ONE), found.of(TWO)) == ({V100: 0.5}, {V100: 0.25})
    found.take(table({(TWO,): {"v100": 0.25}}), 200.0, {TWO})
    assert not found.counts(ONE) and found.of(ONE) == {}


def test_time_of_a_pair_is_time_of_both() -> None:
    found = made({(ONE,): {"v100": 0.5}, (TWO,): {}, (ONE, TWO): {"v100": 0.25}})
    assert found.of(ONE) == {V100: 0.5, ("v100", TWO): 0.25}
    assert found.of(TWO) == {("v100", ONE): 0.25} and found.partners == {ONE: [TWO], TWO: [ONE]}
    assert found.due(40.0, 40.0)(TWO) == {("v100", ONE): 10.0}
    found.take(table({(ONE,): {"v100": 0.5}}), 50.0, {ONE, TWO})
    assert found.of(TWO) == {} and found.of(ONE) == {V100: 0.5}


def test_a_pair_that_has_no_time_any_more_is_forgotten() -> None:
    found = made({(ONE,): {"v100": 0.5}, (TWO,): {}, (ONE, TWO): {"v100": 0.25}})
    found.take(table({(ONE,): {"v100": 0.5}, (TWO,): {}, (ONE, TWO): {}}), 100.0, {ONE, TWO})
    assert found.due(140.0, 140.0)(TWO) == {}


def test_jobs_are_told_anew_when_a_hundredth_changes() -> None:
    before: Fractions = {(ONE,): {"v100": 0.5}, (TWO,): {"v100": 0.25}, (THREE,): {"v100": 0.1}}
    after: Fractions = {
        (ONE,): {"v100": 0.5049},
        (TWO,): {"v100": 0.26},
        (THREE,): {"v100": 0.1, "k80": 0.001},
    }
    found = made(before)
    assert found.take(table(after), 100.0, {ONE, TWO, THREE}) == {TWO, THREE}
    assert found.take(table({(ONE,): after[ONE,], (TWO,): after[TWO,]}), 200.0, {ONE, TWO}) == {THREE}


def test_equal_parts_count_until_an_allocation_does() -> None:
    found = made({(ONE,): {"v100": 0.5}})
    changed = found.take(table({(TWO,): {"v100": 0.1}}), 50.0, {ONE, TWO}, counted=False)
    assert changed == {TWO}  # what the other one has is as it was
    assert found.of(TWO) == {V100: 0.1} and not found.counts(TWO)
    assert found.due(80.0, 80.0)(TWO) == {V100: pytest.approx(3.0)}
    found.take(table({(TWO,): {"v100": 0.1}}), 60.0, {ONE, TWO}, counted=False)
    assert found.due(60.0, 60.0)(ONE) == {V100: pytest.approx(30.0)}
    found.take(table({(ONE,): {"v100": 0.5}, (TWO,): {"v100": 0.5}}), 100.0, {ONE, TWO})
    assert found.due(110.0, 110.0)(TWO) == {V100: pytest.approx(0.1 * 50 + 0.5 * 10)}
    assert found.counts(TWO)


def test_it_is_remembered() -> None:
    found = made(
        {(ONE,): {"v100": 1 / 3}, (TWO,): {"k80": 0.5}, (ONE, TWO): {"v100": 1 / 7}}, {(ONE,): {"k80": 1}}
    )
    found.take(table({(THREE,): {"v100": 0.25}}), 120.0, {ONE, TWO, THREE}, counted=False)
    assert not found.counts(THREE)
    again = InForce(json.loads(json.dumps(found.remembered())))
    assert again.remembered() == found.remembered()
    for job_id in (ONE, TWO, THREE):
        assert again.of(job_id) == found.of(job_id)
        assert again.due(130.0, 130.0)(job_id) == found.due(130.0, 130.0)(job_id)


@pytest.mark.parametrize(
    "damage",
    [
        {"types": 3},
        {"jobs": [1, 2]},
        {"jobs": ["one"]},
        {"fractions": "!"},
        {"fractions": "AAAAAAAA8H8AAAAAAAAAAA=="},
        {"owed": ""},
        {"owed": "AAAAAAAA+H8AAAAAAAAAAA=="},
        {"since": "soon"},
        {"since": float("nan")},
        {"uncounted": 7},
        {"fractions": "AAAAAAAAAAAAAAAAAAAIQA=="},
    ],
)
def test_what_is_damaged_counts_as_nothing(damage: dict[str, Any]) -> None:
    """One of the fractions is infinity, one is 3; one that is owed is no number."""
    whole = dict(made({(ONE,): {"v100": 0.5}}).remembered())
    assert InForce(whole).counts(ONE)
    assert not InForce(whole | damage).rows
    assert not InForce([whole]).rows and not InForce(None).rows
