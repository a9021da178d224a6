# SPDX-License-Identifier: GPL-2.0-or-later
"""`Timers` against a table of times."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from controller.model import JobId
from controller.model.timers import TINY, Timers

IDS = [JobId(number) for number in range(4)]
Times = st.one_of(st.none(), st.just(math.inf), st.integers(0, 5).map(float))


def timers(*times: float | None) -> Timers:
    """Of jobs 0, 1, 2 and so on."""
    made = Timers()
    for number, time in enumerate(times):
        made.set(JobId(number), time)
    return made


def test_the_first_ones_are_due_and_are_over_with_that() -> None:
    made = timers(3.0, 1.0, 2.0, 9.0)
    assert made.first() == 1.0
    assert made.due(2.5, 10) == [1, 2]
    assert made.due(2.5, 10) == [] and made.first() == 3.0
    assert (made.pop(), made.pop(), made.first()) == (0, 3, math.inf)


def test_so_many_at_most() -> None:
    made = timers(1.0, 2.0, 3.0)
    assert made.due(5.0, 2) == [0, 1]
    assert made.due(5.0, 2) == [2]
    assert timers(1.0).due(5.0, 0) == []


def test_nearly_the_same_time_has_come() -> None:
    made = timers(1.0)
    assert made.due(1.0 - 2 * TINY, 1) == []
    assert made.due(1.0 - TINY / 2, 1) == [0]


def test_a_time_that_comes_back_counts_once() -> None:
    made = timers(1.0)
    for time in (2.0, 1.0, None, 1.0):
        made.set(IDS[0], time)
    assert made.due(5.0, 10) == [0] and made.first() == math.inf


@given(st.lists(st.tuples(st.sampled_from(IDS), Times)), st.integers(0, 6))
def test_the_last_time_of_each_job_counts(changes: list[tuple[JobId, float | None]], now: int) -> None:
    made, table = Timers(), dict[JobId, float]()
    for job_id, time in changes:
        made.set(job_id, time)
        table[job_id] = math.inf if time is None else time
        assert made.first() == min(table.values())
    found = made.due(now, len(IDS))
    assert found == sorted((i for i, time in table.items() if time <= now), key=lambda i: (table[i], i))
    assert made.first() == min([time for time in table.values() if time > now], default=math.inf)
