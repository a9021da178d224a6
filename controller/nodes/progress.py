# SPDX-License-Identifier: GPL-2.0-or-later
"""When simulated nodes tell again how far jobs are, though nothing has happened to them."""

from collections.abc import Iterator
from heapq import heappop, heappush

from controller.cluster.simulated_job import SimulatedJob
from controller.model import JobId

TELLS_AFTER_STEPS, TELLS_AFTER_SECONDS = 30, 2.0
"""So much after a job's speed changed: more than what makes a rate (`controller/observe/rate_meter.py`)."""


class Progress:
    """Once for every speed that a job has had."""

    def __init__(self) -> None:
        self._due: list[tuple[float, JobId, float]] = []
        """When, and since when the job goes at its speed."""
        self._since: dict[JobId, float] = {}

    def follow(self, job: SimulatedJob, now: float) -> None:
        """Nodes have just said how far the job is."""
        since, speed = job.working_since, job.rate * job.steps_per_second
        if since is None or self._since.get(job.id) == since:
            return
        self._since[job.id] = since
        if speed > 0:
            seconds = job.overhead_seconds + TELLS_AFTER_STEPS / speed + TELLS_AFTER_SECONDS
            heappush(self._due, (now + seconds, job.id, since))

    def due(self, now: float) -> Iterator[JobId]:
        """Jobs that have done enough at the speed that they have."""
        while self._due and self._due[0][0] <= now:
            _, job_id, since = heappop(self._due)
            if self._since.get(job_id) == since:
                yield job_id

    def forget(self, job_id: JobId) -> None:
        self._since.pop(job_id, None)
