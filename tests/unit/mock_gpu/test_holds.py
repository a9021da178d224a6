# SPDX-License-Identifier: GPL-2.0-or-later
"""Which jobs had memory on a GPU at the same time, and whether the controller had decided that."""

from __future__ import annotations

import math

from tests.live.gpu_history import Hold, Operation, overlaps, planned, unplanned


def hold(job_id: int, start: float, end: float, gpu: int = 0) -> Hold:
    return Hold("n1", gpu, job_id, start, end)


def did(job_id: int, kind: str, begin: float, outcome: str | None = "done", gpu: int = 0) -> Operation:
    return Operation(job_id=job_id, kind=kind, begin=begin, outcome=outcome, gpus=(f"n1:{gpu}",))


def test_all_pairs_on_one_gpu_at_one_instant() -> None:
    one, two, three = hold(1, 0, 10), hold(2, 1, 4), hold(3, 3, 5)
    assert overlaps([three, one, two]) == [(one, two), (one, three), (two, three)]
    assert overlaps([one, hold(2, 10, 20), hold(3, 1, 4, gpu=1), hold(1, 5, 6)]) == []


def test_what_was_planned_follows_from_the_operations() -> None:
    operations = [
        did(1, "place", 1),
        did(1, "suspend", 5, "failed"),
        did(1, "suspend", 7),
        did(2, "place", 2, "failed"),
        did(1, "resume", 9, None, gpu=3),
    ]
    assert planned(operations) == [hold(1, 1, 7), hold(1, 9, math.inf, gpu=3)]


def test_a_pair_that_was_to_share_may() -> None:
    operations = [did(1, "place", 0), did(2, "place", 4), did(1, "suspend", 10), did(3, "place", 10)]
    first, second = hold(1, 1, 11), hold(2, 5, 30)
    assert unplanned([first, second], operations) == []
    third = hold(3, 10.5, 20)
    assert unplanned([first, second, third], operations) == [(first, third)]
    assert unplanned([hold(2, 3, 9), first], operations) == [(first, hold(2, 3, 9))], "before it was planned"
    again = hold(1, 12, 13)
    assert unplanned([again, second], operations) == [(second, again)], "its time was over"


def test_taking_turns_is_no_plan_to_share() -> None:
    operations = [did(1, "place", 0), did(1, "suspend", 3), did(2, "place", 3)]
    assert unplanned([hold(1, 0.5, 3.4), hold(2, 3.5, 9)], operations) == []
    pair = (hold(1, 0.5, 3.6), hold(2, 3.5, 9))
    assert unplanned(pair, operations) == [pair]
