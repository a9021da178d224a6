# SPDX-License-Identifier: GPL-2.0-or-later
"""Some cases of each fuzz target with each run of the unit tests; `make fuzz` runs the thousands."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import plugin
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import ENOUGH_CASES, ENOUGH_FOR_MARKS, Target, run

CASES = 15
SLOW = {"journal": 4, "controller": 4, "decision": 3, "spank": 5, "http": 5}
"""Fewer of those that start processes or have much to prepare."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_brings_it_down(target: Target, tmp_path: Path) -> None:
    if target in plugin.TARGETS and not plugin.available():
        pytest.skip("needs make, a C compiler with sanitizers, Slurm's headers and Lua")
    result = run(target, tmp_path, SLOW.get(target.name, CASES), start=2026)
    assert not result.failure, result.failure
    assert result.cases >= SLOW.get(target.name, CASES)


def test_a_failure_is_found_and_named(tmp_path: Path) -> None:
    def check(dice: random.Random, _folder: Path) -> bool:
        if dice.random() < 0.3:
            raise KeyError("not meant to be raised")
        return True

    result = run(Target("broken", "numbers", check), tmp_path, 100, start=1)
    assert "KeyError" in result.failure and "not meant" in result.failure


def test_a_target_that_refuses_everything_is_a_failure(tmp_path: Path) -> None:
    refuses = Target("broken", "numbers", lambda _dice, _folder: False)
    for cases in (1, ENOUGH_CASES):
        result = run(refuses, tmp_path, cases, start=1)
        assert result.failure == f"none of {ENOUGH_CASES} cases was accepted"
    one = run(Target("picky", "numbers", lambda dice, _: dice.random() < 0.05), tmp_path, 400, start=1)
    assert not one.failure and 0 < one.accepted < 400


def test_a_target_whose_cases_do_not_get_there_is_a_failure(tmp_path: Path) -> None:
    places: Counter[str] = Counter()

    def check(dice: random.Random, _folder: Path) -> bool:
        places["here"] += dice.random() < 0.01
        return True

    reached = run(Target("goes on", "numbers", check, 1, places, ("here",)), tmp_path, 1, start=1)
    assert not reached.failure and 1 < reached.cases < ENOUGH_FOR_MARKS
    lost = run(Target("broken", "numbers", check, 1, places, ("here", "there")), tmp_path, 1, start=1)
    assert lost.failure == f"none of {ENOUGH_FOR_MARKS} cases was there"


def test_flags_that_slurmctld_does_not_know_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch's spelling, with dashes, is not what slurmctld gives to the module: no parser sees a value."""
    if not plugin.available():
        pytest.skip("needs make, a C compiler with sanitizers, Slurm's headers and Lua")
    (submit,) = (target for target in plugin.TARGETS if target.name == "submit")
    monkeypatch.setattr(plugin, "PREFIX", plugin.PREFIX + "-")
    result = run(submit, tmp_path, 1, start=1)
    assert "gandiva_weight: value accepted" in result.failure
    assert "gandiva_weight: value refused" in result.failure
