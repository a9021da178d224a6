# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans that change no more than so many jobs at a time."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model import Phase, Plan, Snapshot
from controller.policies.gangs import planner
from tests.unit.tiresias.harness import Ideal, Timeline, cluster, job
from tests.unit.tiresias.test_invariants import POLICIES, Shared, jobs_of

BY_ENTRY = {"las late", "las by entry"}
"""Whose order is that in which jobs were stopped, so that it matters which plan stopped them."""


def run(name: str, seed: int, portion: int) -> tuple[Timeline, list[int]]:
    """What happens, and how many jobs each plan starts."""
    starts: list[int] = []

    def count(snapshot: Snapshot, plan: Plan) -> None:
        waiting = [i for i, known in snapshot.jobs.items() if known.phase is not Phase.RUNNING]
        starts.append(sum(plan.assignments[i].run for i in waiting if i in plan.assignments))

    ideal = Ideal(POLICIES[name], cluster(2, 4), jobs_of(seed))
    ideal.on_plan = count
    with patch.object(planner, "_PORTION_JOBS", portion):
        return ideal.run(), starts


@Shared
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(POLICIES)), portion=st.integers(1, 4))
def test_in_portions_all_comes_to_the_same(seed: int, name: str, portion: int) -> None:
    at_once, _ = run(name, seed, 10**6)
    in_portions, starts = run(name, seed, portion)
    assert max(starts) <= portion
    if name in BY_ENTRY:
        assert in_portions.ends.keys() == at_once.ends.keys()
    else:
        assert in_portions.ends == at_once.ends
        assert in_portions.runs == at_once.runs


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_who_is_not_in_the_way_of_this_portion_goes_on(name: str) -> None:
    """Four GPUs are empty, and of the four jobs that wait two start with the first plan."""
    ideal = Ideal(POLICIES[name], cluster(1, 4), [job(n, 1, 10.0) for n in range(1, 5)])
    seen: list[tuple[int, bool]] = []
    ideal.on_plan = lambda snapshot, plan: seen.append(
        (sum(each.run for each in plan.assignments.values()), plan.wake_at == snapshot.time)
    )
    with patch.object(planner, "_PORTION_JOBS", 2):
        timeline = ideal.run()
    assert seen[0] == (2, True), "two of them, and the next plan at once"
    assert timeline.ends == dict.fromkeys(range(1, 5), 10.0)
