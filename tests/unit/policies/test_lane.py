# SPDX-License-Identifier: GPL-2.0-or-later
"""The scan that decides who runs gives what a look at every job in order gives."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import JobId
from controller.policies.mechanisms.lane import Lane
from tests.unit.draws import draws


def plain(jobs: list[tuple[float, int, int, bool]], free: int, backfill: bool) -> tuple[list[int], list[int]]:
    """Starts and stops by one look at each job in order: (key, number, GPUs, runs)."""
    starts, stops, blocked = [], [], False
    for _, number, gpus, runs in sorted(jobs):
        blocked = blocked or (not backfill and gpus > free)
        if gpus <= free and not blocked:
            free -= gpus
            if not runs:
                starts.append(number)
        elif runs:
            stops.append(number)
    return starts, stops


@settings(max_examples=draws(100, 3000))
@given(seed=st.integers(0, 2**32), idle=st.integers(0, 6), backfill=st.booleans())
def test_the_scan_is_a_look_at_each_in_order(seed: int, idle: int, backfill: bool) -> None:
    rng = random.Random(seed)
    jobs: list[tuple[float, int, int, bool]] = []
    for number in range(1, rng.randint(1, 60)):
        # Some wait with keys before all that run, some in between.
        runs = rng.random() < 0.7
        key = rng.random() if runs or rng.random() < 0.5 else rng.random() * 0.05
        jobs.append((key, number, rng.choice([1, 1, 1, 2, 4, 8]), runs))
    held = sum(gpus for _, _, gpus, runs in jobs if runs)
    lane = Lane()
    for key, number, gpus, runs in jobs:
        if runs:
            lane.add_running((key, JobId(number)), gpus)
        else:
            lane.add_waiting((key, JobId(number)), (gpus,))
    starts, stops = lane.scan(idle, {}, len(jobs), backfill=backfill)
    expected, stopped = plain(jobs, held + idle, backfill)
    assert (starts, sorted(stops)) == (expected, sorted(stopped))
