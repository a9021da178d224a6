# SPDX-License-Identifier: GPL-2.0-or-later
"""Gittins indices over the sample file that the authors ship (not part of this repository)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.policies.orders.gittins_index import Distribution, SimulatorTable
from controller.policies.orders.samples import read_sizes

REFS = Path(os.environ.get("GANDIVA_REFS", Path(__file__).resolve().parents[4] / "shared" / "refs"))
SAMPLES = REFS / "inputs/tiresias/shipped/yarn-gput1000.csv"

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason=f"no {SAMPLES} (set GANDIVA_REFS)")


def test_simulators_table_over_its_own_samples() -> None:
    table = SimulatorTable(read_sizes(SAMPLES), 3250)
    assert (len(table.sizes), table.sizes[0], table.sizes[-1]) == (1001, 121, 53294624)
    values = [table.raw(a) for a in (0, 1000, 3250, 10000)]
    assert values == pytest.approx([297.157, 191.502, 87.444, 29.933], abs=6e-3)


def test_textbook_index_with_the_same_quantum() -> None:
    distribution = Distribution(read_sizes(SAMPLES))
    values = [1e6 * distribution.index(a, 3250) for a in (0, 1000, 3250, 10000)]
    assert values == pytest.approx([297.159, 236.862, 122.163, 42.720], abs=6e-3)
