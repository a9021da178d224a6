# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan of a policy that follows what changes equals the plan of a new one, whatever goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import Problem
from controller.policies import budget
from controller.policies.allocations.worker import answers
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from controller.solver import ImmediateSolver
from controller.solver.frames import failed
from tests.unit.draws import draws
from tests.unit.policies.presets import POLICIES, las, preset, tables
from tests.unit.policies.trouble import Trouble


def defragmenting(name: str, **settings: Any) -> Callable[[], Policy]:
    """Whatever is free, it pays, and soon again."""
    migration = {"cost_seconds": 1.0, "cooldown_seconds": 20.0}
    table = {
        "moves": ["pack", "defragment", "locality", "balance", "separate"],
        "migration": migration,
    }
    table["defragment"] = {"free_fraction": 0.1}
    return lambda: make_policy(PolicySettings.model_validate({**table, **tables(name, settings)}))


def growing(name: str, **settings: Any) -> Callable[[], Policy]:
    """As soon as a GPU is free, and often."""
    table = {"moves": ["pack", "defragment", "grow"], "grow": {"idle_seconds": 4.0}}
    table["trials"] = {"trial_seconds": 6.0, "cooldown_seconds": 30.0}
    return lambda: make_policy(PolicySettings.model_validate({**table, **tables(name, settings)}))


ALL: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    "las impatient": las(consolidate_wait_seconds=6.0),
    "las always": las(consolidate="always"),
    "gandiva": preset("gandiva", slice_seconds=8.0, max_jobs_per_gpu=3),
    "rounds packed": preset("gavel-las", "pack", round_seconds=8.0, reset_seconds=20.0),
    "fixed rounds": preset("isolated", round_seconds=8.0, change_types=True),
    "las packed": preset("tiresias-las", "pack", queue_limits=[40.0]),
    "fifo packed": preset("fifo", "pack"),
    "fifo defragmenting": defragmenting("fifo-skip"),
    "las defragmenting": defragmenting("tiresias-las", queue_limits=[40.0]),
    "gandiva defragmenting": defragmenting("gandiva", slice_seconds=8.0, max_jobs_per_gpu=3),
    "fifo growing": growing("fifo-skip"),
    "las growing": growing("tiresias-las", queue_limits=[40.0]),
    "gandiva growing": growing("gandiva", slice_seconds=8.0, max_jobs_per_gpu=3),
    "gandiva packed": preset("gandiva", "pack", slice_seconds=8.0, max_jobs_per_gpu=3),
}
IN_ROUNDS = ("rounds", "rounds at their ends", "rounds packed", "fixed rounds")
Shared = settings(max_examples=draws(40, 1000))


class Unreliable(ImmediateSolver):
    """Every third problem is not solved."""

    def __init__(self) -> None:
        super().__init__(answers)
        self.submitted = 0

    def submit(self, name: str, problem: Problem, on_solved: Callable[[], None]) -> None:
        self.submitted += 1
        if self.submitted % 3 != 1:
            super().submit(name, problem, on_solved)
            return
        self._last[name] = self._solved[name] = failed(problem, "no answer in time")
        on_solved()


@Shared
@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(ALL)))
def test_a_kept_policy_plans_as_a_new_one(seed: int, name: str) -> None:
    trouble = Trouble(random.Random(seed), ALL[name])
    for _ in range(25):
        trouble.turn()


def test_a_round_leaves_no_gpus_that_a_new_policy_gives() -> None:
    """A gang kept its GPUs, some of them on a drained node, and all of them were counted as taken from those
    that a round gives: four GPUs stayed idle until something changed. A new policy started a job on them."""
    trouble = Trouble(random.Random(96), ALL["rounds"])
    for _ in range(25):
        trouble.turn()


@Shared
@given(seed=st.integers(0, 2**32), name=st.sampled_from(IN_ROUNDS))
def test_the_same_when_allocations_fail(seed: int, name: str) -> None:
    trouble = Trouble(random.Random(seed), ALL[name], solver=Unreliable())
    for _ in range(25):
        trouble.turn()


@settings(max_examples=draws(10, 100))
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["gandiva", "las"]))
def test_the_same_in_portions(seed: int, name: str) -> None:
    """Two jobs start, or two have their turns, with one plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "START", budget.LOOKS // 2)
        patch.setattr(budget, "TURN", budget.LOOKS // 2)
        trouble = Trouble(random.Random(seed), ALL[name])
        for _ in range(25):
            trouble.turn()
