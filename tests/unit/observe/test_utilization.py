# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy jobs keep their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from controller.model import JobId
from controller.observe.utilization import Utilization


def seen(fractions: Sequence[float]) -> float | None:
    utilization = Utilization()
    for now in (0.0, 1.0):
        utilization.see(JobId(1), fractions, 0.0, now)
    return utilization.of(JobId(1))


def test_the_mean_of_the_gpus_is_the_same_in_every_order() -> None:
    """The order of a set of GPUs depends on the hash seed of the process."""
    fractions = [0.1, 0.2, 0.3]
    assert len({sum(order) for order in permutations(fractions)}) > 1
    assert len({seen(order) for order in permutations(fractions)}) == 1
