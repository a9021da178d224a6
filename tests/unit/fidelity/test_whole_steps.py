# SPDX-License-Identifier: GPL-2.0-or-later
"""Durations as Gavel has them: a round is so many whole steps."""

from __future__ import annotations

from benchmarks.fidelity.run import in_whole_steps
from controller.simulation.ground_truth import Throughputs
from controller.simulation.traces import TraceJob


def test_what_is_left_of_a_round_after_its_last_whole_step_is_lost() -> None:
    # In 10 s one makes 3 steps, the other 2, not 2.5.
    table = Throughputs({("v100", "even", 1): 0.3, ("v100", "slow", 1): 0.25})
    jobs = [
        TraceJob("even", 0, 1, None, 1, model="even", steps=7),
        TraceJob("slow", 0, 1, None, 2, model="slow", steps=5),
        TraceJob("full", 0, 1, None, 3, model="slow", steps=4),
    ]
    even, slow, full = in_whole_steps(jobs, table, 10.0)
    assert even.duration_seconds == 20 + 1 / 0.3
    assert slow.duration_seconds == 24  # instead of 20 s without rounds
    assert full.duration_seconds == 20
    assert {job.steps for job in (even, slow, full)} == {None}
