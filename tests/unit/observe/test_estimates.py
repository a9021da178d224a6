# SPDX-License-Identifier: GPL-2.0-or-later
"""What pairs that never ran are taken for (SPEC 3.7)."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import Configuration, Provenance, Rate
from controller.observe.estimates import complete, distances, estimated, replaced
from tests.unit.draws import draws

Part = Callable[[str, str], float]


def test_v21_the_fingerprint_is_the_reference_with_the_least_cosine_distance() -> None:
    found = distances(np.array([0.9, 0.8]), np.array([[1.0, 0.8], [0.6, 0.4]]))
    assert found == pytest.approx([0.00135, 0.00960], abs=5e-6)
    assert int(np.argmin(found)) == 0


def test_a_row_of_zeros_is_like_none() -> None:
    assert distances(np.zeros(2), np.array([[1.0, 0.8], [0.0, 0.0]])) == pytest.approx([1.0, 1.0])


@settings(max_examples=draws(15, 300))
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_what_was_measured_stays_and_all_else_is_a_part(
    seed: int, rows: int, columns: int, share: float
) -> None:
    draw = np.random.default_rng(seed)
    known = np.where(draw.random((rows, columns)) < share, draw.random((rows, columns)), np.nan)
    found = complete(known, seed)
    measured = ~np.isnan(known)
    assert (found[measured] == known[measured]).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert (complete(known, seed) == found).all()


def test_a_matrix_of_few_causes_is_completed() -> None:
    """One number for each model and one for each partner: most entries can do without."""
    draw = np.random.default_rng(1)
    true = draw.uniform(0.2, 1, (60, 1)) @ draw.uniform(0.2, 1, (1, 60))
    hidden = draw.random(true.shape) < 0.4
    found = complete(np.where(hidden, np.nan, true))
    errors = np.abs(found - true)[hidden]
    guess = np.abs(true[~hidden].mean() - true)[hidden]
    assert errors.mean() < 0.3 * guess.mean()


MODELS = {
    "light": (0.1, 0.1),
    "lamp": (0.12, 0.1),
    "maths": (0.9, 0.2),
    "copies": (0.2, 0.9),
    "huge": (0.9, 0.9),
}
"""How much of the arithmetic and of the memory bandwidth of a GPU a model takes."""


def part(one: str, other: str) -> float:
    """What is left to a model beside another: they are in each other's way where both need the same."""
    return 1 - 0.5 * sum(mine * theirs for mine, theirs in zip(MODELS[one], MODELS[other], strict=True))


def table(seen: Callable[[str, str], bool], alone: float = 10.0) -> dict[str, dict[Configuration, Rate]]:
    where = Configuration("v100", 1)
    found: dict[str, dict[Configuration, Rate]] = {}
    for one in MODELS:
        found[one] = {where: Rate(alone)}
        for other in MODELS:
            if seen(one, other):
                found[one][Configuration("v100", 1, 1, (other,))] = Rate(alone * part(one, other))
    return found


def beside(other: str) -> Configuration:
    return Configuration("v100", 1, 1, (other,))


def test_a_pair_that_never_ran_is_taken_for_one_of_the_models_most_like_its_own() -> None:
    """`lamp` ran beside one model alone; both ways it is taken for `light`."""
    known = table(lambda one, other: "lamp" not in (one, other) or (one, other) == ("lamp", "huge"))
    found = estimated(known)
    assert beside("huge") not in found["lamp"]
    assert found["lamp"][beside("maths")].provenance is Provenance.ESTIMATED
    for one in MODELS:
        for other in MODELS:
            if "lamp" in (one, other) and (one, other) != ("lamp", "huge"):
                rate = found[one][beside(other)].samples_per_second
                assert rate == pytest.approx(10 * part(one, other), rel=0.1), (one, other)
    assert {m for m in found if m != "lamp"} == {"light", "maths", "copies", "huge"}
    assert estimated(known, ["lamp"]) == {"lamp": found["lamp"]}


def test_what_is_measured_is_not_estimated_and_parts_scale_with_the_rate_alone() -> None:
    known = table(lambda *_: True)
    assert estimated(known) == {}
    del known["lamp"][beside("maths")]
    ((where, rate),) = estimated(known)["lamp"].items()
    assert where == beside("maths")
    twice = {**known, "lamp": {k: Rate(2 * v.samples_per_second) for k, v in known["lamp"].items()}}
    assert estimated(twice)["lamp"][where].samples_per_second == pytest.approx(2 * rate.samples_per_second)


def test_what_a_measured_pair_was_taken_for_does_not_depend_on_its_measurement() -> None:
    known = table(lambda *_: True)
    expected = estimated({**known, "lamp": {k: v for k, v in known["lamp"].items() if k != beside("maths")}})
    known["lamp"][beside("maths")] = Rate(0.1)
    assert replaced(known, ["lamp"])["lamp"][beside("maths")] == expected["lamp"][beside("maths")]
    declared = {
        m: {k: Rate(v.samples_per_second, provenance=Provenance.DECLARED) for k, v in t.items()}
        for m, t in known.items()
    }
    assert replaced(declared) == {}


def test_nothing_is_estimated_from_nothing() -> None:
    assert estimated({}) == {}
    assert estimated(table(lambda *_: False)) == {}
    unknown_alone = table(lambda *_: True)
    del unknown_alone["lamp"]
    assert "lamp" not in estimated(unknown_alone)


def test_a_model_that_nothing_is_known_of_is_taken_for_one_that_is_drawn() -> None:
    known = table(lambda one, other: "lamp" not in (one, other))
    assert estimated(known, seed=1) == estimated(known, seed=1)
    drawn = {estimated(known, seed=s)["lamp"][beside("maths")].samples_per_second for s in range(12)}
    assert len(drawn) > 1


def test_new_models_with_one_pair_in_five_measured_are_estimated_better_than_by_the_mean() -> None:
    draw = random.Random(3)
    names = [f"m{i:02}" for i in range(20)]
    mixes = {name: (draw.random(), draw.random()) for name in names}
    true = {(a, b): 1 - 0.5 * sum(map(float.__mul__, mixes[a], mixes[b])) for a in names for b in names}
    hidden = [pair for pair in true if {"m00", "m07"} & set(pair) and draw.random() < 0.8]
    known = {a: {Configuration("v100", 1): Rate(1.0)} for a in names}
    for a, b in true.keys() - set(hidden):
        known[a][beside(b)] = Rate(true[a, b])
    found = estimated(known)
    mean = sum(true.values()) / len(true)
    errors = [abs(found[a][beside(b)].samples_per_second - true[a, b]) for a, b in hidden]
    assert sum(errors) < 0.85 * sum(abs(mean - true[pair]) for pair in hidden)
