# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures over time and distributions, small enough for a page however many slices there were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

WAIT_EDGES = (10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)
"""Upper edges of the classes of waiting time, in seconds; the last class has none."""


class MeanOverTime:
    """How many there were, on average, in each of `bins` equal parts of a span of time."""

    def __init__(self, start: float, end: float, bins: int) -> None:
        """`start` and `end` in seconds; `end` must be later."""
        self._start = start
        self._width = (end - start) / bins
        self._bins = bins
        self._parts = [0.0] * bins
        self._steps = [0.0] * (bins + 1)

    def add(self, begin: float, end: float, count: float = 1.0) -> None:
        """`count` more, from `begin` to `end` (seconds; what is outside of the span does not matter)."""
        first = max(0.0, (begin - self._start) / self._width)
        last = min(float(self._bins), (end - self._start) / self._width)
        if last <= first:
            return
        low, high = int(first), min(int(last), self._bins - 1)
        if low == high:
            self._parts[low] += count * (last - first)
            return
        self._parts[low] += count * (low + 1 - first)
        self._parts[high] += count * (last - high)
        self._steps[low + 1] += count
        self._steps[high] -= count

    def means(self) -> list[float]:
        """One number per part, with two digits."""
        whole = accumulate(self._steps[: self._bins])
        return [round(max(0.0, a + b), 2) for a, b in zip(self._parts, whole, strict=True)]


def classes(waits: Iterable[float]) -> list[int]:
    """How many waiting times (seconds) fall into each class of WAIT_EDGES, and above the last."""
    counts = [0] * (len(WAIT_EDGES) + 1)
    for wait in waits:
        counts[sum(wait >= edge for edge in WAIT_EDGES)] += 1
    return counts


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The value that `part` (0 to 1) of a sorted list does not exceed; None of an empty one."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None
