# SPDX-License-Identifier: MIT
"""From the first part of a learning curve to its end.

A training's accuracy rises and levels off: `accuracy(step) = top - gap * step ** -slope`. For each of some
slopes top and gap are the least-squares line; the slope that fits best counts. Standard library only.
"""

import math
from typing import Sequence, Tuple

_SLOPES = tuple(0.1 * count for count in range(1, 21))
_LEAST_POINTS = 3


def predict_final(points: Sequence[Tuple[float, float]], final_step: float) -> float:
    """The accuracy at `final_step`, from 0 to 1, that the points (step from 1 on, accuracy) lead to.

    NaN with fewer than three points: nothing can be said yet."""
    if len({step for step, _ in points}) < _LEAST_POINTS:
        return math.nan
    best = (math.inf, 0.0)
    for slope in _SLOPES:
        line = [(step**-slope, accuracy) for step, accuracy in points]
        middle_x, middle_y = sum(x for x, _ in line) / len(line), sum(y for _, y in line) / len(line)
        spread = sum((x - middle_x) ** 2 for x, _ in line)
        # A curve that falls is level: training longer makes nothing worse for long.
        rise = min(0.0, sum((x - middle_x) * (y - middle_y) for x, y in line) / spread)
        off = sum((middle_y + rise * (x - middle_x) - y) ** 2 for x, y in line)
        best = min(best, (off, middle_y + rise * (final_step**-slope - middle_x)))
    return min(1.0, max(0.0, best[1]))
