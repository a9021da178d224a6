# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmark of searches: the same search under both policies, and what is told of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.searches import STEPS, STOP_BELOW, WANTED, Configuration, both, made_search
from tests.unit.draws import some


def test_the_configuration_that_is_looked_for_is_where_it_should_be() -> None:
    for position in (0.25, 0.5, 0.98):
        search = made_search(position, seed=1)
        good = [at for at, each in enumerate(search, start=1) if each.final >= WANTED]
        assert (len(search), good) == (100, [round(position * 100)])
    assert made_search(0.5, seed=1) == made_search(0.5, seed=1) != made_search(0.5, seed=2)


def test_a_curve_rises_to_its_end() -> None:
    configuration = Configuration(0.8, 7)
    assert configuration.accuracy(STEPS) == 0.8
    told = [configuration.accuracy(step) for step in range(250, STEPS, 2500)]
    assert told[0] < STOP_BELOW and all(late > early - 0.05 for early, late in pairwise(told))


@pytest.mark.parametrize(("position", "gain"), some([(0.15, 2.5), (0.25, 3.5)], lambda case: case[0] == 0.15))
def test_priorities_and_exclusive_jobs_find_it_sooner(position: float, gain: float) -> None:
    """Through comments, observation, policy and suspends, on virtual time."""
    fifo, gandiva = both(position, gpus=4, seed=0)
    assert fifo.reached[WANTED] > gain * gandiva.reached[WANTED]
    span = gandiva.reached[WANTED]
    assert sum(at <= span for at in gandiva.explored) > 4 * sum(at <= span for at in fifo.explored)
