# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of a search on one node: who of them takes the turns that the search has, and what others notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from controller.model import Job, JobId, Search
from tests.unit.policies.ideal import Ideal, make_job, make_node
from tests.unit.policies.presets import preset

SLICE = 60.0


def node_with(gpus: int, jobs: Iterable[Job]) -> Ideal:
    """One node; each plan is compared with one made from nothing."""
    make = preset("gandiva", slice_seconds=SLICE, max_jobs_per_gpu=16)
    return Ideal(make, [make_node("s0", gpus)], jobs, bound=True)


def trial(number: int, search: Search | None = None, **changes: Any) -> Job:
    request = replace(make_job(number, nodes=1).request, search=search or Search("lr"))
    return replace(make_job(number, nodes=1), request=request, **changes)


def other(number: int, **changes: Any) -> Job:
    return replace(make_job(number, nodes=1), user="bob", **changes)


def set_search(c: Ideal, number: int, **changes: Any) -> None:
    """Its user changes what is said of the job."""
    job = c.jobs[JobId(number)]
    assert job.request.search is not None
    search = replace(job.request.search, **changes)
    c.change(number, request=replace(job.request, search=search))


def turns(c: Ideal, slices: int) -> Counter[int]:
    """How many of so many slices each job had."""
    return Counter(number for running in c.slices(slices, SLICE) for number in running)


def test_jobs_of_a_search_take_turns_as_any_others() -> None:
    plain = turns(
        node_with(4, [replace(trial(n), request=make_job(n, nodes=1).request) for n in range(1, 7)]), 12
    )
    assert (
        turns(node_with(4, [trial(n) for n in range(1, 7)]), 12)
        == plain
        == Counter(dict.fromkeys(range(1, 7), 8))
    )


def test_exclusive_jobs_are_not_sliced_and_the_others_share_what_is_left() -> None:
    jobs = [trial(n, Search("lr", exclusive=n >= 5)) for n in range(1, 7)]
    c = node_with(4, jobs)
    c.slices(1)
    assert turns(c, 12) == {5: 12, 6: 12, 1: 6, 2: 6, 3: 6, 4: 6}


def test_priorities_divide_the_turns_of_the_search() -> None:
    jobs = [trial(1, Search("lr", priority=3)), trial(2), trial(3)]
    assert turns(node_with(1, jobs), 50) == {1: 30, 2: 10, 3: 10}


@pytest.mark.parametrize("exclusive", [0, 1, 2, 6])
def test_what_a_user_says_of_a_search_takes_no_turn_from_others(exclusive: int) -> None:
    jobs = [trial(n, Search("lr", 9 if n == 6 else 1, n <= exclusive)) for n in range(1, 7)]
    jobs += [other(7), other(8)]
    had = turns(node_with(4, jobs), 80)
    assert abs(had[7] - 40) <= 1 and abs(had[8] - 40) <= 1
    if exclusive <= 2:
        assert all(had[number] >= 79 for number in range(1, exclusive + 1))


def test_more_exclusive_jobs_than_the_search_has_turns_share_these() -> None:
    jobs = [trial(n, Search("lr", exclusive=n <= 2)) for n in range(1, 4)] + [other(n) for n in (4, 5, 6)]
    had = turns(node_with(2, jobs), 60)
    assert abs(had[1] + had[2] - 60) <= 1 and abs(had[1] - had[2]) <= 2
    assert had[3] <= 1
    assert all(abs(had[n] - 20) <= 1 for n in (4, 5, 6))


def test_weights_of_a_search_count_against_others_as_they_do_without_it() -> None:
    heavy = [trial(n, Search("lr", exclusive=n == 1)) for n in (1, 2)]
    heavy = [replace(job, request=replace(job.request, weight=2.0)) for job in heavy]
    had = turns(node_with(1, [*heavy, other(3)]), 50)
    assert abs(had[3] - 10) <= 1
    assert abs(had[1] - 40) <= 1


def test_an_exclusive_job_that_ends_leaves_no_debt_to_others() -> None:
    jobs = [trial(n, Search("lr", exclusive=n == 1)) for n in range(1, 4)] + [other(4)]
    c = node_with(1, jobs)
    first = turns(c, 40)
    assert abs(first[1] - 30) <= 1 and abs(first[4] - 10) <= 1
    c.remove(1)
    then = turns(c, 30)
    assert abs(then[4] - 10) <= 1
    assert abs(then[2] - 10) <= 1 and abs(then[3] - 10) <= 1


def test_changing_what_is_said_again_and_again_gains_nothing() -> None:
    c = node_with(1, [trial(1), trial(2), trial(3), other(4)])
    had = turns(c, 1)
    for round_ in range(40):
        for number in (1, 2, 3):
            set_search(
                c, number, priority=100.0 if (round_ + number) % 3 else 0.01, exclusive=round_ % 2 == 0
            )
        had += turns(c, 1)
    assert abs(had[4] - 10) <= 1


def test_a_job_that_is_exclusive_no_more_goes_on_level_with_the_others() -> None:
    c = node_with(1, [trial(1, Search("lr", exclusive=True)), trial(2), trial(3)])
    assert turns(c, 30) == {1: 30}
    set_search(c, 1, exclusive=False)
    had = turns(c, 30)
    assert all(abs(had[n] - 10) <= 1 for n in (1, 2, 3))


def test_a_job_that_joins_a_search_starts_level_with_the_others() -> None:
    c = node_with(1, [trial(1), trial(2)])
    c.slices(20)
    c.add(trial(3, submit_time=c.now))
    had = turns(c, 30)
    assert all(abs(had[n] - 10) <= 1 for n in (1, 2, 3))


@pytest.mark.parametrize(
    "changes",
    [{"user": "bob"}, {"account": "speech"}, {"request": replace(trial(1).request, search=Search("other"))}],
)
def test_searches_of_other_users_accounts_and_names_are_other_searches(changes: dict[str, Any]) -> None:
    jobs = [trial(1, Search("lr", exclusive=True)), trial(2), replace(trial(3), **changes)]
    had = turns(node_with(1, jobs), 30)
    assert abs(had[3] - 10) <= 1
    assert abs(had[1] - 20) <= 1


def test_a_search_does_not_reach_over_priority_classes() -> None:
    jobs = [trial(1, Search("lr", exclusive=True)), trial(2, priority_class=1), other(3)]
    assert turns(node_with(1, jobs), 10) == {2: 10}
    had = turns(node_with(2, jobs), 40)
    assert had[2] == 40, "first in its class"
    assert abs(had[1] - 20) <= 1 and abs(had[3] - 20) <= 1, "what it had there counts there only"


def test_a_restarted_controller_goes_on_with_the_same_accounts() -> None:
    c = node_with(1, [trial(1, Search("lr", priority=3)), trial(2), trial(3), other(4)])
    had = turns(c, 21)
    c.restart()
    had += turns(c, 39)
    assert abs(had[4] - 15) <= 1
    assert abs(had[1] - 27) <= 2


def test_the_reason_says_what_counts() -> None:
    c = node_with(1, [trial(1, Search("lr", exclusive=True)), trial(2, Search("lr", priority=0.5))])
    c.slices(3)
    set_search(c, 1, exclusive=False)
    set_search(c, 2, exclusive=True)
    c.slices(3)
    assert "priority 1 in search lr" in c.reasons[JobId(1)]
    set_search(c, 2, exclusive=False)
    set_search(c, 1, exclusive=True)
    c.slices(3)
    assert "exclusive in search lr" in c.reasons[JobId(1)]
    assert "by the jobs of its search; priority 0.5 in search lr" in c.reasons[JobId(2)]
