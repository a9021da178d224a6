# SPDX-License-Identifier: GPL-2.0-or-later
"""Slices that no operation began or ended: jobs found running at start, jobs that ended, restarts."""

import logging

from controller.act.recorder import SAVED_NOTE, Recorder, Step
from controller.cluster.port import OVER, ClusterJob
from controller.journal import Journal
from controller.model import ON_GPU, GpuSet, Job, JobId, Phase, Usage, gpu_type
from controller.model.clock import Clock
from controller.observe.memory import JobMemories
from controller.observe.observer import Observer
from controller.observe.utilization import Utilization

log = logging.getLogger(__name__)

CLOCK_DRIFT_SECONDS = 2.0
"""More than this between the time of day and the time since boot: the wall clock was stepped."""
UPTIME_KEY = "uptime"

_LAST_STEPS = frozenset({Step.AWAIT_START.value, Step.NODE_RESUME.value})
"""With these a job gets onto its GPUs, if nothing comes between."""


class Accounting:
    """Keeps `JobMemories` and the journal's slices in step with what is observed."""

    def __init__(self, memory: JobMemories, recorder: Recorder, clock: Clock) -> None:
        self._memory, self._recorder, self._clock = memory, recorder, clock
        self._was_running: dict[JobId, tuple[float, GpuSet]] = {}
        """Jobs that an earlier controller left on GPUs: until when it saw them, and where."""
        self._was_starting: dict[JobId, float] = {}
        """Jobs that an earlier controller was putting on GPUs, and when it took the last step to that."""
        self._looked_at: float | None = None

    def recall(self, journal: Journal, utilization: Utilization, *, saves: bool) -> None:
        """What an earlier controller left in the journal. `saves`: jobs are saved from time to time. Raises
        JournalError."""
        last_seen, now = journal.last_heartbeat(), self._clock.now()
        stepped = 0.0 if last_seen is None else self._clock_was_stepped_by(journal, last_seen, now)
        for operation in journal.open_operations():
            step = operation.step or "none"
            log.info("job %s: %s was interrupted after step %r", operation.job_id, operation.kind, step)
            if operation.step in _LAST_STEPS and operation.step_time is not None:
                self._was_starting[operation.job_id] = min(operation.step_time + stepped, now)
            journal.end_operation(operation.op_id, "interrupted", now)
        if last_seen is not None:
            self._looked_at = seen_until = min(last_seen + stepped, now)
            for job_id, gpus in journal.close_open_slices(last_seen).items():
                self._was_running[job_id] = (seen_until, gpus)
        for job_id, totals in journal.totals().items():
            memory = self._memory.change(job_id)
            memory.usage = Usage(
                seconds=totals.run_seconds,
                gpu_seconds=totals.gpu_seconds,
                waited_seconds=totals.waited_seconds,
                idle_since=self._looked_at if totals.slices else None,
            )
            memory.moves, memory.suspends = totals.moves, totals.suspends
            memory.saved_seconds = totals.run_seconds
            if totals.utilization_fraction is not None:
                utilization.recall(job_id, totals.run_seconds, totals.utilization_fraction)
        notes = journal.notes(SAVED_NOTE)
        for job_id in self._memory.known():
            memory, note = self._memory.change(job_id), notes.get(job_id)
            if note and isinstance(note[0], int | float):
                memory.saved_seconds = float(note[0])
            elif saves:  # it counts as saved now, for controllers to come too: not at once with all others
                self._recorder.saves_from(job_id, memory.saved_seconds)

    def _clock_was_stepped_by(self, journal: Journal, last_seen: float, now: float) -> float:
        """By how many seconds the wall clock was stepped while no controller ran, more than it may drift."""
        saved = journal.load_state(UPTIME_KEY)
        boot_id, uptime_seconds = self._clock.uptime()
        if not (isinstance(saved, list) and len(saved) == 2 and boot_id and saved[0] == boot_id):
            return min(0.0, now - last_seen)
        away_seconds = max(0.0, uptime_seconds - float(saved[1]))
        stepped = now - away_seconds - last_seen
        if abs(stepped) < CLOCK_DRIFT_SECONDS:
            return 0.0
        log.warning("the wall clock was stepped by %+.0f s while no controller ran", stepped)
        return stepped

    def follow(self, observer: Observer, now: float) -> None:
        """Begin and end slices by what was taken over, before it becomes a snapshot."""
        for job_id in sorted(observer.looked_at | self._was_running.keys()):
            job, slurm_job = observer.jobs.get(job_id), observer.slurm.jobs.get(job_id)
            if job is None:
                self._end(job_id, slurm_job, observer, now)
            elif job.phase is not Phase.UNKNOWN and not job.switching:
                self._see(job, slurm_job, observer, now)
        if self._was_running or self._was_starting:
            # Jobs on nodes that do not answer yet are judged when they do.
            ids = (*self._was_running, *self._was_starting)
            unknown = {i for i in ids if i in observer.jobs and observer.jobs[i].phase is Phase.UNKNOWN}
            self._was_running = {j: was for j, was in self._was_running.items() if j in unknown}
            self._was_starting = {j: since for j, since in self._was_starting.items() if j in unknown}
        self._looked_at = now

    def _see(self, job: Job, slurm_job: ClusterJob | None, observer: Observer, now: float) -> None:
        # One that is stuck in a switch which a killed controller had begun has not left its GPUs either.
        on_gpus = job.phase is Phase.RUNNING or (job.phase is Phase.STUCK and job.id in self._was_running)
        if on_gpus and self._memory.of(job.id).usage.since is None:
            since = self._ran_since(job.id, None if slurm_job is None else slurm_job.start_time, now)
            self._begin(job.id, job.last, observer, since)
        elif job.phase not in ON_GPU and self._memory.stopped(job.id, now):
            self._recorder.slice_ends(job.id, "found off its GPUs", now)
        elif job.phase is Phase.COMPLETING:
            self._end(job.id, slurm_job, observer, now)

    def _begin(self, job_id: JobId, gpus: GpuSet, observer: Observer, since: float) -> None:
        if self._memory.started(job_id, gpus, gpu_type(gpus, observer.made_nodes), since):
            self._recorder.slice_begins(job_id, gpus, since)

    def _end(self, job_id: JobId, slurm_job: ClusterJob | None, observer: Observer, now: float) -> None:
        """The job is over, or Slurm does not know it any more; or it is no Gandiva job any more."""
        if slurm_job is not None and slurm_job.state not in OVER:
            return
        since = self._memory.of(job_id).usage.since
        if job_id in self._was_running and since is None:
            # It went on while no controller ran, and ended.
            since, gpus = self._was_running[job_id]
            self._begin(job_id, gpus, observer, since)
            now = now if slurm_job is not None else since
        if since is not None:
            end = _end_of(slurm_job, since, now)
            if self._memory.stopped(job_id, end):
                self._recorder.slice_ends(job_id, "job ended", end)
        if slurm_job is None:
            self._memory.forget(job_id)

    def _ran_since(self, job_id: JobId, started: float | None, now: float) -> float:
        """Since when a job is on its GPUs that is found there: a running job goes on when no controller runs,
        and Slurm may have started it between two looks."""
        if job_id in self._was_running:
            return self._was_running[job_id][0]
        if started is not None and self._looked_at is not None and self._looked_at <= started <= now:
            return started
        resumed_at = self._memory.of(job_id).resumed_at
        return resumed_at if resumed_at is not None else self._was_starting.get(job_id, now)


def _end_of(job: ClusterJob | None, since: float, now: float) -> float:
    """When a job that is over left its GPUs: Slurm's end time, unless its clock was stepped."""
    end = job.end_time if job is not None else None
    return end if end is not None and since <= end <= now else now
