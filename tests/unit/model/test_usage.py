# SPDX-License-Identifier: GPL-2.0-or-later
"""`Usage`: what a job has had."""

from __future__ import annotations

from controller.model import UNUSED, Usage


def test_waiting_counts_after_the_first_start() -> None:
    assert UNUSED.waited(500.0) == 0.0
    usage = UNUSED.started(100.0, 2).stopped(130.0)
    assert usage.waited(150.0) == 20.0
    usage = usage.started(150.0, 1)
    assert usage.waited(999.0) == 20.0
    assert (usage.ran(160.0), usage.served(160.0)) == (40.0, 70.0)


def test_a_clock_that_is_set_back_takes_no_waiting_away() -> None:
    usage = Usage(waited_seconds=20.0, idle_since=130.0)
    assert usage.waited(100.0) == 20.0
    assert usage.started(100.0, 1).waited_seconds == 20.0
