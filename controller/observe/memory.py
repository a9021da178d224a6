# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller itself knows of a job, beyond what Slurm and the nodes can tell.

Time on GPUs is measured here: from the moment a job may use its GPUs to the moment its node has acknowledged
that it left them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from controller.cluster.port import ClusterJob
from controller.model import UNUSED, FailedSuspends, GpuSet, Job, JobId, Reason, Usage, Why, value
from controller.model.value import empty

Group = tuple[str, str, str, str]
"""User, account, QOS and partition of jobs: those that Slurm counts together for its limits."""


@value
class FailedStart:
    """A start that Slurm did not carry out."""

    why: str
    """Slurm's reason."""
    until: float
    """Nothing is tried before this time."""
    behind_until: float
    """Other jobs come first until then."""

    @classmethod
    def at(cls, now: float, why: str, pause_seconds: float) -> "FailedStart":
        """After a pause, and as long again behind others, it is as any other job: it must not starve."""
        return cls(why, now + pause_seconds, now + 2 * pause_seconds)


@value
class Limit:
    """Slurm starts no more jobs of a group for now."""

    failed: FailedStart
    """The last start that showed it."""
    tried: frozenset[JobId]
    """Jobs whose starts did."""


@dataclass(slots=True)
class JobMemory:
    """One job."""

    usage: Usage = UNUSED
    gpus: GpuSet = frozenset()
    """Those it is on, or was on last."""
    first_start: float | None = None
    held_until: float | None = None
    """An operation failed: nothing is tried before this time."""
    failed_starts: int = 0
    """In a row, that Slurm did not carry out."""
    last_failed: FailedStart | None = None
    """The last of them, where it was for a reason of its own."""
    refused_by: Mapping[str, tuple[float, int]] = field(default_factory=empty)
    """Nodes on which Slurm did not start it: until when they are left out, and how often that was."""
    unsuspendable_until: float | None = None
    """A suspend failed: not asked again before this time."""
    unsavable_until: float | None = None
    """Its sessions could not write into their store, or Slurm kept it where it was off its GPUs: not asked
    again before this time."""
    failed_suspends: FailedSuspends | None = None
    trespasses_since: float | None = None
    """It has memory since then on a GPU that is not its own now."""
    trespassed: int = 0
    """How often it was requeued for that."""
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
    saved_seconds: float = 0.0
    """On GPUs, when its state was written into its store the last time."""
    saves_off: bool = True
    """It could write to it when it was off its GPUs the last time."""
    has_store: bool = False
    """Its sessions have registered a checkpoint store, in this start or an earlier one."""
    suspends: int = 0
    moves: int = 0
    """Slices on other GPUs than the one before."""


FIRST_PAUSE_SECONDS, ELSEWHERE_SECONDS = 60.0, 10.0
"""After a first failed start, and where other nodes may do. The pause of a job doubles with each failure."""
LONGEST_PAUSE_SECONDS, LONGEST_AT_LIMIT_SECONDS = 3600.0, 600.0
"""Its most; at a limit it lets jobs of the same user that may be within the limit have their try first."""


def doubled(seconds: float, times: int) -> float:
    """The pause after so many failures."""
    return min(seconds * 2.0 ** min(times - 1, 16), LONGEST_PAUSE_SECONDS)


def group(job: Job | ClusterJob) -> Group:
    """The group of a job."""
    return job.user, job.account, job.qos, job.partition


_NOTHING = JobMemory()
"""What is known of a job that was never changed."""


class JobMemories:
    """All jobs. Changes go through `change`, so that observation knows which jobs to look at."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobMemory] = {}
        self._changed: set[JobId] = set()
        self.limits: dict[Group, Limit] = {}
        """Of jobs at a limit of Slurm."""

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

    def start_failed(
        self, job: Job, nodes: Collection[str], why: str, now: float, *, limit: bool, about_nodes: bool
    ) -> float:
        """Slurm did not start a job on these nodes. Returns until when nothing is tried with it.

        Args:
            limit: a limit is reached, which ends when other jobs do: it holds for all of the group.
            about_nodes: other nodes may do.
        """
        memory = self.change(job.id)
        why = Why(Reason.AT_LIMIT if limit else Reason.OPERATION_FAILED, why)
        memory.failed_starts += 1
        if limit:
            known = self.limits.get(group(job))
            tried = (known.tried if known else frozenset()) | {job.id}
            self.limits[group(job)] = Limit(FailedStart.at(now, why, FIRST_PAUSE_SECONDS), tried)
        if about_nodes:
            refused = {name: (until, n) for name, (until, n) in memory.refused_by.items()}
            for name in nodes:
                times = refused.get(name, (0.0, 0))[1] + 1
                refused[name] = (now + doubled(FIRST_PAUSE_SECONDS, times), times)
            memory.refused_by = refused
        first = ELSEWHERE_SECONDS if about_nodes else FIRST_PAUSE_SECONDS
        most = LONGEST_AT_LIMIT_SECONDS if limit else LONGEST_PAUSE_SECONDS
        pause_seconds = min(most, doubled(first, memory.failed_starts))
        memory.last_failed = FailedStart.at(now, why, pause_seconds)
        return memory.last_failed.until

    def start_done(self, job: Job) -> None:
        """Slurm started a job: what it refused before does not count any more."""
        if self.of(job.id).failed_starts:
            memory = self.change(job.id)
            memory.failed_starts, memory.last_failed, memory.refused_by = 0, None, empty()
        self.lift(job.user)

    def lift(self, user: str) -> None:
        """A job of this user started or ended: limits may not be reached any more. Nothing is held for them;
        for a while its jobs still come behind others, and are tried one at a time."""
        for key, limit in self.limits.items():
            if key[0] == user and limit.tried:
                for job_id in limit.tried:
                    memory = self.change(job_id)
                    memory.failed_starts, memory.last_failed, memory.held_until = 0, None, None
                self.limits[key] = Limit(replace(limit.failed, until=0.0), frozenset())

    def forget(self, job_id: JobId) -> None:
        """The job is over and accounted for."""
        if self._jobs.pop(job_id, None) is not None:
            self._changed.add(job_id)
