# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gittins index of a job from samples of what other jobs took in all (SPEC 2.2, 2.4).

G(a) = sup over quanta D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a]: the chance of finishing per unit
of service spent on trying. S and a are service, in GPU-seconds.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

_DIGITS_LOST = 1e-9
"""A difference of sums that is so small a part of them has too few digits left."""


class Distribution:
    """Sizes of finished jobs."""

    def __init__(self, sizes: Iterable[float]) -> None:
        self.sizes = sorted(sizes)
        self._sums = [0.0, *accumulate(self.sizes)]

    def index(self, attained: float, quantum: float) -> float:
        """The index for one quantum. 0 when no sample is larger than `attained`; an infinite quantum gives
        1 / E[S - a | S > a]."""
        sizes, sums = self.sizes, self._sums
        first = bisect_right(sizes, attained)
        larger = len(sizes) - first
        if not larger:
            return 0.0
        within = bisect_right(sizes, attained + quantum) - first
        spent = sums[first + within] - sums[first] - within * attained
        if spent < _DIGITS_LOST * sums[first + within]:
            spent = sum(size - attained for size in sizes[first : first + within])
        if within < larger:
            spent += (larger - within) * quantum
        # All within the quantum, or p = within / larger over e = spent / larger.
        return within / spent

    def supremum(self, attained: float, *, whole_sizes: bool = False) -> float:
        """The index for the best quantum, which is always the distance to a sample. O(samples).

        `whole_sizes`: as the authors' simulator counts, whole sizes of the jobs that end, not what is left.
        """
        sizes = self.sizes
        first = bisect_right(sizes, attained)
        larger = len(sizes) - first
        best, spent = 0.0, 0.0
        for k in range(1, larger + 1):
            left = sizes[first + k - 1] - attained
            spent += sizes[first + k - 1] if whole_sizes else left
            # Equal samples count together: later ones of the same size give the larger value.
            best = max(best, k / (spent + (larger - k) * left))
        return best


class SimulatorTable:
    """The table of the authors' simulator, its roundings included.

    Differs from the definition: the denominator adds the whole size of a job that ends within the quantum,
    not what is left of it, and values hold up to the next sample.
    """

    def __init__(self, sizes: Iterable[float], quantum: float, *, integer: bool = False) -> None:
        """`integer`: the mean in the denominator is a whole number, as Python 2 divides integers."""
        self._integer = integer
        self.sizes = sorted(int(size) for size in sizes)
        self._sums = [0, *accumulate(self.sizes)]
        self._quantum = quantum
        self._indices = [self.raw(size - 1) for size in self.sizes]

    def raw(self, attained: float) -> float:
        """The index at exactly this service, times 1e6."""
        sizes, n = self.sizes, len(self.sizes)
        if not n or attained > sizes[-1] - 1:
            return 0.0
        first = bisect_right(sizes, attained)
        reach = attained + self._quantum
        last = n - 1 if reach > sizes[-1] - 1 else bisect_right(sizes, reach)
        p = round((last - first) / (n - first), 5)
        spent = self._sums[last] - self._sums[first] + self._quantum * (n - last)
        e = float(spent // (n - first)) if self._integer else round(spent / (n - first), 5)
        return round(p * 1_000_000 / e, 4) if e else 0.0

    def index(self, attained: float) -> float:
        """The value that the simulator uses for this service."""
        if not self.sizes or attained > self.sizes[-1]:
            return 0.0
        first = bisect_right(self.sizes, attained)
        return self._indices[first] if first < len(self._indices) else 0.0
