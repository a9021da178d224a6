# SPDX-License-Identifier: MIT
"""From the first part of a learning curve to its end.

A training's accuracy rises and levels off: `accuracy(step) = top - gap * step ** -slope`. For each of some
slopes top and gap are the least-squares line; the slope that fits best counts. Standard library only.
"""

import math
from typing import List, Mapping, NamedTuple, Sequence, Tuple

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


class Judgement(NamedTuple):
    """What becomes of the jobs of a search."""

    stop: List[str]
    """They will not be good enough."""
    first: List[str]
    """The most promising ones, the best first."""
    unknown: List[str]
    """Of these nothing can be said yet."""


def judge(
    curves: Mapping[str, Sequence[Tuple[float, float]]], *, final_step: float, stop_below: float, top: int
) -> Judgement:
    """The rule of the Gandiva paper's searches (OSDI'18): stop what will end below `stop_below`, and let the
    `top` most promising go first. `curves`: by job, accuracies by step."""
    ends = {job: predict_final(points, final_step) for job, points in curves.items()}
    known = sorted((job for job, end in ends.items() if not math.isnan(end)), key=lambda job: -ends[job])
    good = [job for job in known if ends[job] >= stop_below]
    return Judgement(
        [job for job in known if ends[job] < stop_below],
        good[:top],
        [job for job, end in ends.items() if math.isnan(end)],
    )
