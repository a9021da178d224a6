# SPDX-License-Identifier: GPL-2.0-or-later
"""An ordered queue of gangs, and the scan that decides who runs.

The scan is Tiresias' and every simulator's: job by job in order, a gang runs if it fits into what is left,
else it is passed over (or blocks, where there is no backfill). Jobs that run already are kept as one block
as long as nobody waiting stands before them, so that most scans cost a few steps however many jobs there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any

from controller.model import JobId

Key = tuple[Any, ...]
"""Place in the order. Unique: it ends with the job's id."""
Entry = tuple[Any, ...]
"""A running job: its key, and the size of its gang after it. (One flat tuple: there are many, and where they
change places all are made with each plan.)"""
Shape = tuple[Hashable, ...]
"""Jobs of one shape fit or do not fit in the same way. The first item is the size of the gang."""


_FEW = 8
"""Up to one change in so many entries, each is put in its place by itself; from there on all are sorted."""


class Sorted:
    """Unique entries in order, for many changes and few looks: what changed is gathered until somebody
    looks, who leaves and comes back has not moved, and thousands of changes cost one sort of a list that is
    nearly sorted."""

    __slots__ = ("_gone", "_new", "_settled")

    def __init__(self) -> None:
        self._settled: list[Entry] = []
        self._new: set[Entry] = set()
        self._gone: set[Entry] = set()

    def add(self, entry: Entry) -> None:
        if entry in self._gone:
            self._gone.remove(entry)
        else:
            self._new.add(entry)

    def remove(self, entry: Entry) -> None:
        """Take out one that is there."""
        if entry in self._new:
            self._new.remove(entry)
        else:
            self._gone.add(entry)

    def entries(self) -> list[Entry]:
        """All of them, in order; not to be changed, and right until the next change."""
        new, gone, entries = self._new, self._gone, self._settled
        if not (new or gone):
            return entries
        if _FEW * (len(new) + len(gone)) < len(entries):
            for entry in gone:
                del entries[bisect_left(entries, entry)]
            for entry in new:
                insort(entries, entry)
        else:
            if gone:
                entries[:] = [entry for entry in entries if entry not in gone]
            entries += sorted(new)
            entries.sort()
        new.clear()
        gone.clear()
        return entries

    def replace(self, entries: list[Entry]) -> None:
        """These instead, in order."""
        self._settled = entries
        self._new.clear()
        self._gone.clear()


@dataclass(slots=True)
class Lane:
    """One queue: who runs, and who waits by shape, each in order."""

    _running: Sorted = field(default_factory=Sorted)
    running_count: int = 0
    running_gpus: int = 0
    _waiting: dict[Shape, Sorted] = field(default_factory=dict)
    waiting_count: int = 0

    @property
    def running(self) -> list[Entry]:
        """In order."""
        return self._running.entries()

    def add_running(self, entry: Entry) -> None:
        self._running.add(entry)
        self.running_count += 1
        self.running_gpus += entry[-1]

    def remove_running(self, entry: Entry) -> None:
        self._running.remove(entry)
        self.running_count -= 1
        self.running_gpus -= entry[-1]

    def reorder(self, running: list[Entry]) -> None:
        """The same jobs run, in this order."""
        self._running.replace(running)

    def add_waiting(self, key: Key, shape: Shape) -> None:
        line = self._waiting.get(shape)
        if line is None:
            line = self._waiting[shape] = Sorted()
        line.add(key)
        self.waiting_count += 1

    def remove_waiting(self, key: Key, shape: Shape) -> None:
        self._waiting[shape].remove(key)
        self.waiting_count -= 1

    def waiting(self) -> Iterator[tuple[Sorted, list[Key]]]:
        """Those that wait, by shape: their line, and their keys, in order."""
        for line in self._waiting.values():
            yield line, line.entries()

    def lines(self, gpus: int, skip: Set[Shape]) -> Iterator[tuple[int, list[Key]]]:
        """Those that wait with gangs of at most so many GPUs: the size of the gang, and keys in order."""
        empty = []
        for shape, line in self._waiting.items():
            size = shape[0]
            assert isinstance(size, int)
            if size <= gpus and shape not in skip:
                entries = line.entries()
                if entries:
                    yield size, entries
                else:
                    empty.append(shape)
        for shape in empty:
            del self._waiting[shape]


@dataclass(slots=True)
class Selection:
    """The outcome of a scan, against what runs now."""

    starts: list[JobId] = field(default_factory=list)
    """In order."""
    stops: list[JobId] = field(default_factory=list)
    """In order."""
    free_gpus: int = 0


def select(lanes: Sequence[Lane], free_gpus: int, skip: Set[Shape], *, backfill: bool) -> Selection:
    """Who runs when `free_gpus` are to be given out, the running jobs' own included.

    `skip`: shapes that cannot be placed, whatever the count says.
    """
    selection = Selection(free_gpus=free_gpus)
    if not backfill:
        _strict(lanes, selection, skip)
        return selection
    for lane in lanes:
        if not selection.free_gpus:
            selection.stops.extend([entry[-2] for entry in lane.running])
            continue
        heads = _heads(lane, selection.free_gpus, skip)
        if lane.running_count:
            fit = lane.running_gpus <= selection.free_gpus
            if fit and (not heads or heads[0][0] > lane.running[-1]):
                selection.free_gpus -= lane.running_gpus
            else:
                _merge(lane, heads, selection)
                continue
        _take_waiting(heads, selection)
    return selection


_Head = tuple[Key, int, int, list[Key]]
"""Key, gang size, index in its line, the line."""


def _heads(lane: Lane, free_gpus: int, skip: Set[Shape]) -> list[_Head]:
    if not lane.waiting_count:
        return []
    heads: list[_Head] = [(line[0], size, 0, line) for size, line in lane.lines(free_gpus, skip)]
    heapify(heads)
    return heads


def _advance(heads: list[_Head]) -> None:
    """Put the next job of the first line in its place."""
    _, size, index, line = heads[0]
    index += 1
    if index < len(line):
        heapreplace(heads, (line[index], size, index, line))
    else:
        heappop(heads)


def _take_waiting(heads: list[_Head], selection: Selection) -> None:
    while heads and selection.free_gpus:
        key, size, _, _ = heads[0]
        if size > selection.free_gpus:
            # What is left only shrinks: nobody of this line fits any more.
            heappop(heads)
            continue
        selection.starts.append(key[-1])
        selection.free_gpus -= size
        _advance(heads)


def _merge(lane: Lane, heads: list[_Head], selection: Selection) -> None:
    running = lane.running
    tail = _start_those_before(lane, heads, selection) if lane.running_gpus <= selection.free_gpus else 0
    free = selection.free_gpus
    for entry in running[tail:] if tail else running:
        while heads and heads[0][0] < entry:
            key, size, _, _ = heads[0]
            if size > free:
                heappop(heads)
                continue
            selection.starts.append(key[-1])
            free -= size
            _advance(heads)
        if entry[-1] <= free:
            free -= entry[-1]
        else:
            selection.stops.append(entry[-2])
    selection.free_gpus = free
    _take_waiting(heads, selection)


def _start_those_before(lane: Lane, heads: list[_Head], selection: Selection) -> int:
    """While all that runs fits and there is room enough, those waiting before a running job start without a
    look at every running job: only the last ones can have to stop. Counts in the starts and the running jobs
    before the index returned; from there on room may be short, and every job must be looked at. (A start may
    lie behind that index: the running jobs in between fit all the same.)"""
    running = lane.running
    first = len(running)
    left = selection.free_gpus - lane.running_gpus
    # `left`: GPUs that remain when the scan comes to `running[first]`.
    most = max((head[1] for head in heads), default=0)
    while heads:
        while first and left < 2 * most:
            first -= 1
            left += running[first][-1]
        if not first or left < 2 * most or heads[0][0] > running[first - 1]:
            break
        key, size, _, _ = heads[0]
        selection.starts.append(key[-1])
        left -= size
        _advance(heads)
    selection.free_gpus = left
    return first


def _strict(lanes: Sequence[Lane], selection: Selection, skip: Set[Shape]) -> None:
    """The first that does not fit blocks all behind it."""
    for number, lane in enumerate(lanes):
        blocked = _strict_lane(lane, _heads(lane, 1 << 60, skip), selection)
        if blocked is not None:
            selection.stops.extend([entry[-2] for entry in lane.running[blocked:]])
            for later in lanes[number + 1 :]:
                selection.stops.extend([entry[-2] for entry in later.running])
            return


def _strict_lane(lane: Lane, heads: list[_Head], selection: Selection) -> int | None:
    """The same for one. How many of its running jobs stand before the one that blocks; None: nobody does."""
    running, free, before = lane.running, selection.free_gpus, 0
    blocked = None
    while heads:
        key, size, _, _ = heads[0]
        upto = bisect_left(running, key, before)
        blocked, free = _kept(running, before, upto, free)
        before = upto
        if blocked is None and size > free:
            blocked = before
        if blocked is not None:
            break
        selection.starts.append(key[-1])
        free -= size
        _advance(heads)
    else:
        blocked, free = _kept(running, before, len(running), free)
    selection.free_gpus = free
    return blocked


def _kept(running: list[Entry], begin: int, end: int, free: int) -> tuple[int | None, int]:
    """The first running job of these that does not fit, and what is left before it."""
    for index in range(begin, end):
        gpus = running[index][-1]
        if gpus > free:
            return index, free
        free -= gpus
    return None, free
