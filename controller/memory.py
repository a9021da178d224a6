# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller itself knows of a job, beyond what Slurm and the nodes can tell.

The time on GPUs is measured here: from the moment a job may use its GPUs to the moment its node has
acknowledged that it left them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.model import FailedSuspends, GpuSet, JobId, Profile


@dataclass(slots=True)
class JobMemory:
    """One job."""

    run_seconds: float = 0.0
    """Finished slices."""
    gpu_seconds: float = 0.0
    running_since: float | None = None
    """Begin of the slice it is in."""
    running_on: GpuSet = frozenset()
    first_start: float | None = None
    not_before: float | None = None
    """A start failed: leave it alone until then."""
    unsuspendable_until: float | None = None
    """A suspend failed: do not ask again until then."""
    failed_suspends: FailedSuspends | None = None
    watched_seconds: float = 0.0
    """Part of its time on GPUs in which it was seen how busy they were."""
    busy_seconds: float = 0.0
    """That time, times their utilisation."""
    off_seconds: float = 0.0
    """What it took to get off its GPUs the last time."""
    exempt_until: float | None = None
    """It keeps its GPUs until then: before, its last switch has not paid off."""
    suspends: int = 0
    moves: int = 0
    profile: Profile = field(default_factory=Profile)

    @property
    def utilization_fraction(self) -> float | None:
        """Of its GPUs, on average, while it was on them. None: not seen yet."""
        return self.busy_seconds / self.watched_seconds if self.watched_seconds else None

    def run_seconds_at(self, now: float) -> float:
        """Time on GPUs, the current slice included."""
        current = 0.0 if self.running_since is None else max(0.0, now - self.running_since)
        return self.run_seconds + current

    def gpu_seconds_at(self, now: float) -> float:
        """Attained service, the current slice included."""
        current = 0.0 if self.running_since is None else max(0.0, now - self.running_since)
        return self.gpu_seconds + current * len(self.running_on)


class Memory:
    """All jobs."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobMemory] = {}

    def __getitem__(self, job_id: JobId) -> JobMemory:
        memory = self._jobs.get(job_id)
        if memory is None:
            memory = self._jobs[job_id] = JobMemory()
        return memory

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    def known(self) -> list[JobId]:
        """Jobs there is a memory of."""
        return list(self._jobs)

    def started(self, job_id: JobId, gpus: GpuSet, now: float) -> bool:
        """A slice begins. False: it had begun already (the same GPUs)."""
        memory = self[job_id]
        if memory.running_since is not None:
            return False
        memory.running_since = now
        memory.running_on = gpus
        if memory.first_start is None:
            memory.first_start = now
        return True

    def stopped(self, job_id: JobId, now: float) -> bool:
        """The slice ends. False: there was none."""
        memory = self._jobs.get(job_id)
        if memory is None:
            return False
        memory.failed_suspends = None
        if memory.running_since is None:
            return False
        memory.run_seconds = memory.run_seconds_at(now)
        memory.gpu_seconds = memory.gpu_seconds_at(now)
        memory.running_since = None
        return True

    def forget(self, job_id: JobId) -> None:
        """The job is over and accounted for."""
        self._jobs.pop(job_id, None)
