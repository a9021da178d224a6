# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers of a simulation that do not depend on the order of sets."""

from __future__ import annotations

from itertools import permutations

from controller.journal.records import Slice
from controller.model import JobId
from controller.simulation.outcome import gpu_seconds
from tests.unit.policies.ideal import gpu_set


def test_gpu_seconds_are_the_same_in_every_order_of_the_gpus() -> None:
    """The order of a set of GPUs depends on the hash seed of the process."""
    seconds = [0.1, 0.2, 0.3, 1e6 / 3]
    slices = [Slice(JobId(n), gpu_set(f"n1:{n}"), 0.0, end, "ended") for n, end in enumerate(seconds)]
    assert len({sum(order) for order in permutations(seconds)}) > 1
    assert len({gpu_seconds(order) for order in permutations(slices)}) == 1
