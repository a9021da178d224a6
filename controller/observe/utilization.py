# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy jobs keep their GPUs."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from controller.model import JobId

LONGEST_LOOK_SECONDS = 10.0
"""One look at a GPU says no more than this about how busy it was."""
BUSY_FRACTION = 0.02
"""A utilisation that differs by less from the one stated last is not stated anew."""


@dataclass(slots=True)
class _Watched:
    seconds: float = 0.0
    busy_seconds: float = 0.0
    stated: float | None = None
    looked_at: float | None = None


class Utilization:
    """How busy jobs keep their GPUs, on average over the time that they are on them. By job.

    A GPU's utilisation is that of the job which has it alone; of jobs that share GPUs nothing is known.
    NVML's figure is of the last second: the first look in a slice does not count.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Watched] = {}

    def recall(self, job_id: JobId, seconds: float, fraction: float) -> None:
        """What an earlier controller saw in so much time."""
        self._jobs[job_id] = _Watched(seconds, seconds * fraction, fraction)

    def of(self, job_id: JobId) -> float | None:
        """The figure as it is now. None: not seen yet."""
        known = self._jobs.get(job_id)
        return known.busy_seconds / known.seconds if known is not None and known.seconds else None

    def see(
        self, job_id: JobId, fractions: Collection[float], since: float | None, now: float
    ) -> float | None:
        """All GPUs of a job were seen. `since`: it has them alone since then; None: it does not. Returns the
        figure to be stated; None: nothing is learned."""
        watched = self._jobs.setdefault(job_id, _Watched())
        before, watched.looked_at = watched.looked_at, now
        if before is None or since is None or since > before or not fractions:
            return None
        seconds = min(now - before, LONGEST_LOOK_SECONDS)
        watched.seconds += seconds
        watched.busy_seconds += seconds * math.fsum(fractions) / len(fractions)
        if watched.seconds:
            now = watched.busy_seconds / watched.seconds
            if watched.stated is None or abs(now - watched.stated) >= BUSY_FRACTION:
                watched.stated = round(now, 2)
        return watched.stated

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self._jobs.pop(job_id, None)
