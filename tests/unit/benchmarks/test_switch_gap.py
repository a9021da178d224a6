# SPDX-License-Identifier: GPL-2.0-or-later
"""The gap at a switch, from what the two jobs have logged."""

from __future__ import annotations

import pytest

from benchmarks.switch_gap import gaps, percentile, steps_in


def test_gaps_are_where_the_job_changes() -> None:
    first = steps_in('{"time": 10.1}\n{"time": 10.2}\n{"time": 12.1}\n', 1, minibatch_ms=100)
    second = steps_in('{"time": 10.7}\n{"time": 11.5}\n', 2, minibatch_ms=100)
    assert gaps([*second, *first]) == pytest.approx([0.4, 0.5])


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(value) for value in range(200)], 0.99) == 198.0
