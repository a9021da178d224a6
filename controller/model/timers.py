# SPDX-License-Identifier: GPL-2.0-or-later
"""When jobs change by themselves."""

import math
from heapq import heappop, heappush

from controller.model.cluster import JobId

TINY = 1e-6
"""Seconds below which two times count as equal."""


class Timers:
    """At most one time for each job."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, JobId]] = []
        self._times: dict[JobId, float] = {}
        """Entries of the heap that say something else are void."""

    def set(self, job_id: JobId, time: float | None) -> None:
        """Instead of the job's earlier one. None, and infinity: none."""
        if self._times.get(job_id, math.inf) == time:
            return
        if time is None or time == math.inf:
            self._times.pop(job_id, None)
        else:
            self._times[job_id] = time
            heappush(self._heap, (time, job_id))

    def due(self, now: float, most: int) -> list[JobId]:
        """Jobs whose time has come, so many at most, the first ones; it is over with that."""
        found: list[JobId] = []
        while len(found) < most and self.first() <= now + TINY:
            found.append(self.pop())
        return found

    def pop(self) -> JobId:
        """The job whose time is `first`; it is over with that."""
        self.first()
        _, job_id = heappop(self._heap)
        del self._times[job_id]
        return job_id

    def first(self) -> float:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf
