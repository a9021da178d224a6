# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue, by kinds of jobs that fit in the same places: a search that finds no room for one job answers
for all of its kind, so that a queue of thousands costs one search per kind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import NamedTuple

from controller.model import Job, JobId

Key = tuple[int, float, JobId]
"""Place in the queue: higher class first, then by submission."""


def queue_key(job: Job) -> Key:
    """Where it stands in the queue."""
    return (-job.priority_class, job.submit_time, job.id)


def kind_of(job: Job) -> Hashable:
    """Equal for jobs that fit in the same places."""
    request = job.request
    return (
        request.gpus,
        request.nodes,
        request.gpu_types,
        job.required_nodes,
        job.excluded_nodes,
        job.cpus_per_node,
        job.memory_per_node_bytes,
    )


class Waiting:
    """Jobs of one sort (with or without a seat) by kind, each kind in the order of the queue."""

    def __init__(self) -> None:
        self.lines: dict[Hashable, list[Key]] = {}
        self._of: dict[JobId, tuple[Hashable, Key]] = {}

    def add(self, job: Job) -> None:
        kind, key = kind_of(job), queue_key(job)
        insort(self.lines.setdefault(kind, []), key)
        self._of[job.id] = kind, key

    def remove(self, job_id: JobId) -> None:
        found = self._of.pop(job_id, None)
        if found is not None:
            kind, key = found
            line = self.lines[kind]
            del line[bisect_left(line, key)]
            if not line:
                del self.lines[kind]

    def kind(self, job_id: JobId) -> Hashable:
        """The line it is in."""
        return self._of[job_id][0]

    def key(self, job_id: JobId) -> Key:
        """Its place there."""
        return self._of[job_id][1]

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._of


class Turn(NamedTuple):
    """A job to look at next. Compared by key alone: keys are unique."""

    key: Key
    seated: bool
    kind: Hashable


class Visits:
    """Jobs of several lines in the order of the queue, each at most once."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Turn]] = []
        self._count = 0
        self._seen: set[JobId] = set()
        self.last: Key | None = None
        """Who was visited last."""

    def push(self, key: Key, *, seated: bool, kind: Hashable) -> None:
        self._count += 1
        heappush(self._heap, (key, self._count, Turn(key, seated, kind)))

    def push_line(self, line: list[Key], *, seated: bool, kind: Hashable) -> None:
        """The first of this line that is behind whoever was visited last."""
        index = 0 if self.last is None else bisect_right(line, self.last)
        if index < len(line):
            self.push(line[index], seated=seated, kind=kind)

    def pop(self) -> Turn | None:
        """The next one."""
        while self._heap:
            _, _, turn = heappop(self._heap)
            self.last = turn.key
            if turn.key[2] not in self._seen:
                self._seen.add(turn.key[2])
                return turn
        return None
