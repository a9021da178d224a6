# SPDX-License-Identifier: GPL-2.0-or-later
"""Many times rounded at once are each rounded by itself."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policies.gangs.rounding import _WORTH_ARRAYS, rounded

CLOSE = [0.0, -0.0, 0.5e-6, 1.5e-6, 2.5e-6, 1e-7, 4.9999999e-7, 1234.5678905, math.inf, 1e10 + 0.5, 1e300]


@settings(deadline=None, max_examples=20)
@given(
    values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
)
def test_many_at_once(values: list[float], seed: int) -> None:
    rng = random.Random(seed)
    # Halves of a millionth, as near as a number comes to them, in all sizes.
    halves = [(rng.randrange(10 ** rng.randint(1, 15)) + 0.5) / 1e6 for _ in range(_WORTH_ARRAYS)]
    every = [*CLOSE, *values, *halves, *(math.nextafter(half, rng.choice([0, 1e300])) for half in halves)]
    whole = [round(value, 6) for value in every]
    assert rounded(every) == whole
    assert [rounded([value]) for value in every] == [[value] for value in whole]
