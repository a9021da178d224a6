# SPDX-License-Identifier: GPL-2.0-or-later
"""The scan that decides who runs gives what a look at every job in order gives."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import JobId
from controller.policies.gangs.lanes import Lane, select


def plain(
    lanes: list[list[tuple[float, int, int, bool]]], free: int, backfill: bool
) -> tuple[list[int], list[int]]:
    """Starts and stops by one look at each job in order: (key, number, GPUs, runs)."""
    starts, stops = [], []
    blocked = False
    for lane in lanes:
        for _, number, gpus, runs in sorted(lane):
            blocked = blocked or (not backfill and gpus > free)
            if gpus <= free and not blocked:
                free -= gpus
                if not runs:
                    starts.append(number)
            elif runs:
                stops.append(number)
    return starts, stops


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), spare=st.integers(0, 6), short=st.booleans(), backfill=st.booleans())
def test_select_is_the_plain_scan(seed: int, spare: int, short: bool, backfill: bool) -> None:
    rng = random.Random(seed)
    jobs: list[list[tuple[float, int, int, bool]]] = []
    number = 0
    for _ in range(rng.choice([1, 1, 3])):
        lane = []
        for _ in range(rng.randint(0, 40)):
            number += 1
            # Some wait with keys before all that run, some in between.
            runs = rng.random() < 0.7
            key = rng.random() if runs or rng.random() < 0.5 else rng.random() * 0.05
            lane.append((key, number, rng.choice([1, 1, 1, 2, 4, 8]), runs))
        jobs.append(lane)
    held = sum(gpus for lane in jobs for _, _, gpus, runs in lane if runs)
    free = max(0, held - spare) if short else held + spare
    lanes = []
    for lane in jobs:
        made = Lane()
        for key, job, gpus, runs in lane:
            if runs:
                made.add_running((key, JobId(job), gpus))
            else:
                made.add_waiting((key, JobId(job)), (gpus,))
        lanes.append(made)
    selection = select(lanes, free, set(), backfill=backfill)
    starts, stops = plain(jobs, free, backfill)
    assert (selection.starts, sorted(selection.stops)) == (starts, sorted(stops))
