# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller itself knows of a job, beyond what Slurm and the nodes can tell.

Time on GPUs is measured here: from the moment a job may use its GPUs to the moment its node has acknowledged
that it left them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from controller.model import UNUSED, FailedSuspends, GpuSet, JobId, Usage


@dataclass(slots=True)
class JobMemory:
    """One job."""

    usage: Usage = UNUSED
    gpus: GpuSet = frozenset()
    """Those it is on, or was on last."""
    first_start: float | None = None
    held_until: float | None = None
    """An operation failed: nothing is tried before this time."""
    unsuspendable_until: float | None = None
    """A suspend failed: not asked again before this time."""
    unsavable_until: float | None = None
    """Its sessions could not write into their store, or Slurm kept it where it was off its GPUs: not asked
    again before this time."""
    failed_suspends: FailedSuspends | None = None
    resumed_at: float | None = None
    """A node was asked then to put it back onto its GPUs, and its answer is not known."""
    off_seconds: float = 0.0
    """What it took to get off its GPUs the last time."""
    keeps_until: float | None = None
    """It keeps its GPUs until then: before, its last switch has not paid off."""
    promised: GpuSet = frozenset()
    """The allocation that a plan chose and that Slurm has not made yet."""
    promised_size: int = 0
    """GPUs of the gang there, where that is not what the job asked for; else 0."""
    beside: frozenset[JobId] = frozenset()
    """With which jobs plans let it share the GPUs that it is on."""
    has_store: bool = False
    """Its sessions have registered a checkpoint store, in this start or an earlier one."""
    suspends: int = 0
    moves: int = 0
    """Slices on other GPUs than the one before."""


_NOTHING = JobMemory()
"""What is known of a job that was never changed."""


class JobMemories:
    """All jobs. Changes go through `change`, so that observation knows which jobs to look at."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobMemory] = {}
        self._changed: set[JobId] = set()

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    def of(self, job_id: JobId) -> JobMemory:
        """What is known, to be read only."""
        return self._jobs.get(job_id, _NOTHING)

    def change(self, job_id: JobId) -> JobMemory:
        """The same, to be changed."""
        self._changed.add(job_id)
        if job_id not in self._jobs:
            self._jobs[job_id] = JobMemory()
        return self._jobs[job_id]

    def known(self) -> Collection[JobId]:
        """Jobs that something is known of."""
        return self._jobs.keys()

    def take_changed(self) -> set[JobId]:
        """Jobs changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def started(self, job_id: JobId, gpus: GpuSet, gpu_type: str, now: float) -> bool:
        """A slice begins. False: it had begun already."""
        if self.of(job_id).usage.since is not None:
            return False
        memory = self.change(job_id)
        memory.usage = memory.usage.started(now, len(gpus), gpu_type)
        memory.moves += bool(memory.gpus) and memory.gpus != gpus
        memory.gpus, memory.resumed_at = gpus, None
        if memory.first_start is None:
            memory.first_start = now
        return True

    def stopped(self, job_id: JobId, now: float) -> bool:
        """The slice ends. False: there was none."""
        known = self.of(job_id)
        if known.failed_suspends is not None or known.resumed_at is not None:
            memory = self.change(job_id)
            memory.failed_suspends = memory.resumed_at = None
        if known.usage.since is None:
            return False
        self.change(job_id).usage = known.usage.stopped(max(now, known.usage.since))
        return True

    def forget(self, job_id: JobId) -> None:
        """The job is over and accounted for."""
        if self._jobs.pop(job_id, None) is not None:
            self._changed.add(job_id)
