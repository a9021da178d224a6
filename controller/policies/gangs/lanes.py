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
Shape = tuple[Hashable, ...]
"""Jobs of one shape fit or do not fit in the same way. The first item is the size of the gang."""


@dataclass(slots=True)
class Lane:
    """One queue: who runs, and who waits by shape, each in order."""

    running: list[tuple[Key, JobId, int]] = field(default_factory=list)
    running_gpus: int = 0
    waiting: dict[Shape, list[tuple[Key, JobId]]] = field(default_factory=dict)

    def add_running(self, key: Key, job_id: JobId, gpus: int) -> None:
        insort(self.running, (key, job_id, gpus))
        self.running_gpus += gpus

    def remove_running(self, key: Key, job_id: JobId, gpus: int) -> None:
        del self.running[bisect_left(self.running, (key, job_id, gpus))]
        self.running_gpus -= gpus

    def add_waiting(self, key: Key, job_id: JobId, shape: Shape) -> None:
        insort(self.waiting.setdefault(shape, []), (key, job_id))

    def remove_waiting(self, key: Key, job_id: JobId, shape: Shape) -> None:
        line = self.waiting[shape]
        del line[bisect_left(line, (key, job_id))]
        if not line:
            del self.waiting[shape]

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self.waiting.values()))


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
            selection.stops.extend(job_id for _, job_id, _ in lane.running)
            continue
        heads = _heads(lane, selection.free_gpus, skip)
        running = lane.running
        if running:
            if lane.running_gpus <= selection.free_gpus and (not heads or heads[0][0] > running[-1][0]):
                selection.free_gpus -= lane.running_gpus
            else:
                _merge(lane, heads, selection)
                continue
        _take_waiting(heads, selection)
    return selection


_Head = tuple[Key, JobId, int, int, list[tuple[Key, JobId]]]
"""Key, job, gang size, index in its line, the line."""


def _heads(lane: Lane, free_gpus: int, skip: Set[Shape]) -> list[_Head]:
    heads: list[_Head] = []
    for shape, line in lane.waiting.items():
        size = shape[0]
        assert isinstance(size, int)
        if size <= free_gpus and shape not in skip:
            key, job_id = line[0]
            heads.append((key, job_id, size, 0, line))
    heapify(heads)
    return heads


def _advance(heads: list[_Head]) -> None:
    """Put the next job of the first line in its place."""
    _, _, size, index, line = heads[0]
    index += 1
    if index < len(line):
        key, job_id = line[index]
        heapreplace(heads, (key, job_id, size, index, line))
    else:
        heappop(heads)


def _take_waiting(heads: list[_Head], selection: Selection) -> None:
    while heads and selection.free_gpus:
        _, job_id, size, _, _ = heads[0]
        if size > selection.free_gpus:
            # What is left only shrinks: nobody of this line fits any more.
            heappop(heads)
            continue
        selection.starts.append(job_id)
        selection.free_gpus -= size
        _advance(heads)


def _merge(lane: Lane, heads: list[_Head], selection: Selection) -> None:
    running = lane.running
    tail = _start_those_before(lane, heads, selection) if lane.running_gpus <= selection.free_gpus else 0
    free = selection.free_gpus
    for key, running_id, gpus in running[tail:] if tail else running:
        while heads and heads[0][0] < key:
            _, job_id, size, _, _ = heads[0]
            if size > free:
                heappop(heads)
                continue
            selection.starts.append(job_id)
            free -= size
            _advance(heads)
        if gpus <= free:
            free -= gpus
        else:
            selection.stops.append(running_id)
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
    most = max((head[2] for head in heads), default=0)
    while heads:
        while first and left < 2 * most:
            first -= 1
            left += running[first][2]
        if not first or left < 2 * most or heads[0][0] > running[first - 1][0]:
            break
        _, job_id, size, _, _ = heads[0]
        selection.starts.append(job_id)
        left -= size
        _advance(heads)
    selection.free_gpus = left
    return first


def _strict(lanes: Sequence[Lane], selection: Selection, skip: Set[Shape]) -> None:
    """The first that does not fit blocks all behind it."""
    for number, lane in enumerate(lanes):
        for key, job_id, gpus, runs in _in_order(lane, skip):
            if gpus > selection.free_gpus:
                behind = lane.running[bisect_left(lane.running, (key,)) :]
                selection.stops.extend(stopped for _, stopped, _ in behind)
                for later in lanes[number + 1 :]:
                    selection.stops.extend(stopped for _, stopped, _ in later.running)
                return
            selection.free_gpus -= gpus
            if not runs:
                selection.starts.append(job_id)


def _in_order(lane: Lane, skip: Set[Shape]) -> Iterator[tuple[Key, JobId, int, bool]]:
    running = lane.running
    heads = _heads(lane, 1 << 60, skip)
    for key, running_id, gpus in running:
        while heads and heads[0][0] < key:
            yield heads[0][0], heads[0][1], heads[0][2], False
            _advance(heads)
        yield key, running_id, gpus, True
    while heads:
        yield heads[0][0], heads[0][1], heads[0][2], False
        _advance(heads)
