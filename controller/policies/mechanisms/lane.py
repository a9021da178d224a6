# SPDX-License-Identifier: GPL-2.0-or-later
"""One queue of gangs, and the scan that decides who runs.

The scan is Tiresias' and every simulator's: job by job in order, a gang runs if it fits into what is left,
else it is passed over, or blocks all behind it where there is no backfill.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace

from controller.model import JobId
from controller.policies.mechanisms.row import Key, Shape

_Head = tuple[Key, int, int, list[Key], Shape]
"""Key, gang size, index in its line, the line, its shape."""


class Lane:
    """Who runs and who waits, each in order. Only running jobs that may be stopped are here."""

    __slots__ = ("_waiting", "held", "running", "sizes")

    def __init__(self) -> None:
        self.running: list[Key] = []
        self.sizes: list[int] = []
        """GPUs of each running job, beside its key."""
        self.held = 0
        """The sum of the sizes."""
        self._waiting: dict[Shape, list[Key]] = {}

    @property
    def contested(self) -> bool:
        return bool(self._waiting)

    def add_running(self, key: Key, size: int) -> None:
        at = bisect_left(self.running, key)
        self.running.insert(at, key)
        self.sizes.insert(at, size)
        self.held += size

    def remove_running(self, key: Key) -> None:
        at = bisect_left(self.running, key)
        self.held -= self.sizes.pop(at)
        del self.running[at]

    def reorder(self, running: list[tuple[Key, int]]) -> None:
        """The same jobs run, with these keys."""
        running.sort()
        self.running, self.sizes = [key for key, _ in running], [size for _, size in running]

    def add_waiting(self, key: Key, shape: Shape) -> None:
        insort(self._waiting.setdefault(shape, []), key)

    def remove_waiting(self, key: Key, shape: Shape) -> None:
        line = self._waiting[shape]
        del line[bisect_left(line, key)]
        if not line:
            del self._waiting[shape]

    def lines(self) -> Iterable[list[Key]]:
        """Jobs that wait, by shape, each line in order; it may be put into another order."""
        return self._waiting.values()

    def scan(
        self, idle: int, most: Mapping[Shape, int], limit: int, *, backfill: bool
    ) -> tuple[list[JobId], list[JobId]]:
        """The jobs that start and those that stop, each in order, when `idle` GPUs are free. Of a shape in
        `most` only so many start, and `limit` in all.

        Costs the shapes that wait, the starts, and the running jobs at the end that may have to stop.
        """
        running, sizes, room = self.running, self.sizes, idle + self.held
        heads: list[_Head] = []
        for shape, line in self._waiting.items():
            size = shape[0]
            assert isinstance(size, int)
            if (size <= room or not backfill) and most.get(shape, 1):
                heads.append((line[0], size, 0, line, shape))
        heapify(heads)
        starts: list[JobId] = []
        # Running jobs before `tail` stay; the `spare` GPUs of the others cover what starts took on credit.
        # `behind` is what the running jobs from `at` on have, those behind the head.
        at, behind, tail, spare = 0, self.held, len(running), 0
        while heads and len(starts) < limit:
            key, size, _, _, _ = heads[0]
            before = bisect_left(running, key, at)
            if before > tail:
                break
            behind -= sum(sizes[at:before])
            at = before
            if size > idle + behind:
                if not backfill:
                    return starts, [key[-1] for key in running[at:]]
                heappop(heads)  # what is left only shrinks: no job of this shape fits
                continue
            starts.append(key[-1])
            idle -= size
            while spare < -idle:
                tail -= 1
                spare += sizes[tail]
            _next(heads, most)
        if idle >= 0:
            return starts, []
        stops: list[JobId] = []
        free = idle + spare
        for at, (key, size) in enumerate(zip(running[tail:], sizes[tail:], strict=True), start=tail):
            while heads and heads[0][0] < key and len(starts) < limit:
                if heads[0][1] > free and not backfill:
                    return starts, [*stops, *(key[-1] for key in running[at:])]
                free = _try(heads, free, starts, most)
            if size <= free:
                free -= size
            elif backfill:
                stops.append(key[-1])
            else:
                return starts, [*stops, *(key[-1] for key in running[at:])]
        while heads and free and len(starts) < limit and (backfill or heads[0][1] <= free):
            free = _try(heads, free, starts, most)
        return starts, stops


def _try(heads: list[_Head], free: int, starts: list[JobId], most: Mapping[Shape, int]) -> int:
    """Start the head if it fits; returns what is left."""
    key, size, _, _, _ = heads[0]
    if size > free:
        heappop(heads)
        return free
    starts.append(key[-1])
    _next(heads, most)
    return free - size


def _next(heads: list[_Head], most: Mapping[Shape, int]) -> None:
    """The next job of the first line takes its place."""
    _, size, index, line, shape = heads[0]
    index += 1
    if index < len(line) and index < most.get(shape, len(line)):
        heapreplace(heads, (line[index], size, index, line, shape))
    else:
        heappop(heads)
