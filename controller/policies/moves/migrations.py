# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard of all moves that migrate jobs: which jobs may go, how many at a time, and whether it pays
(SPEC 1.5).

One record counts for all of these moves, so that no job goes back and forth between two of them. Gain and
cost are in GPU-seconds. What a migration takes is measured; the setting holds until it was.
"""

import math
from collections.abc import Iterable

from controller.model import GpuSet, Job, JobId, Placement, Reason, Snapshot, Verdict, Why
from controller.policies.moves.trials import jobs_on_trial
from controller.policies.placement.draft import Draft
from controller.policies.settings import MigrationSettings

NAME = "migrations"
"""What the draft remembers under it: when jobs migrated, or others did for them."""


def migration_seconds(snapshot: Snapshot, job: Job, prior_seconds: float) -> float:
    """From the last mini-batch to the first one elsewhere: checkpoint and requeue, start, and load, as
    measured of the job's model, else of all jobs. `prior_seconds`: where one of them was not measured."""
    costs = snapshot.costs_of(job)
    parts = (costs.checkpoint_seconds, costs.start_seconds, costs.load_seconds)
    return sum(part for part in parts if part is not None) if None not in parts else prior_seconds


class Migrations:
    """Those of one plan: read from the draft, and written into it by `save`."""

    def __init__(self, snapshot: Snapshot, draft: Draft, settings: MigrationSettings) -> None:
        self._snapshot, self._draft, self._settings = snapshot, draft, settings
        jobs, until = snapshot.jobs, snapshot.time - settings.cooldown_seconds
        said = draft.recall(NAME, dict[JobId, float], {}).items()
        since = {i: min(at, snapshot.time) for i, at in said}  # the wall clock may have been set back
        under_way = {job_id for job_id in since if job_id in jobs and jobs[job_id].promised}
        self._since = {job_id: at for job_id, at in since.items() if at > until or job_id in under_way}
        self._on_trial = jobs_on_trial(draft)
        self.left = settings.most_at_once - len(under_way)
        """So many jobs may still be told to migrate."""

    def cools_down(self, job_id: JobId) -> bool:
        """Whether it migrated, or others did for it, within the cool-down. Asked for a job that could go
        otherwise: the plan is made again when the cool-down is over."""
        over = self._since.get(job_id, -math.inf) + self._settings.cooldown_seconds
        if over <= self._snapshot.time:
            return False
        self._draft.wake(over)
        return True

    def may_go(self, job: Job) -> bool:
        """Whether the job runs and has its GPUs to itself, or is suspended, stays so as far as the plan goes,
        and may start elsewhere."""
        can = (job.may_stop or job.may_start) and job.may_migrate and not job.switching
        return can and self._stays(job) and job.id not in self._on_trial and not self.cools_down(job.id)

    def _stays(self, job: Job) -> bool:
        if self._draft.stays(job):
            return True
        placement, planned = job.placement, self._draft.of(job.id)
        # Some lanes do not count what a suspended job is bound to.
        suspended = placement.allocation and not placement.gpus and not planned.gpus
        return bool(suspended) and planned.allocation <= placement.allocation

    def remaining_seconds(self, job: Job) -> float:
        """How long a gain of this job counts: up to the horizon, and no longer than it still runs where
        that was declared."""
        horizon, declared = self._settings.horizon_seconds, job.request.duration_seconds
        if declared is None:
            return horizon
        ran = self._snapshot.usage_of(job.id).ran(self._snapshot.time)
        return min(horizon, max(0.0, declared - ran))

    def pays(self, gain_gpu_seconds: float, jobs: Iterable[Job]) -> bool:
        """Whether the gain exceeds the cost of moving these jobs, their GPUs as long as each migration takes,
        so many times as the settings want."""
        prior = self._settings.cost_seconds
        cost = sum(job.gpus * migration_seconds(self._snapshot, job, prior) for job in jobs)
        return gain_gpu_seconds > self._settings.gain_ratio * cost

    def go(
        self,
        move: str,
        job_id: JobId,
        gpus: GpuSet,
        why: str,
        gain: float | None = None,
        verdict: Verdict = Verdict.PLANNED,
    ) -> None:
        """The job continues on these. `why`: after `continues on NODES: `. `gain`: its expected rate there,
        as a multiple of the present one, where it is known."""
        self._draft.put(job_id, Placement(gpus, gpus))
        names = ",".join(sorted({gpu.node for gpu in gpus}))
        self._draft.say(job_id, Why(Reason.MIGRATES, f"continues on {names}: {why}"))
        self._draft.note(move, verdict, [job_id], gain)
        self.note(job_id)
        self.left -= 1

    def note(self, job_id: JobId) -> None:
        """Its cool-down begins."""
        self._since[job_id] = self._snapshot.time

    def save(self) -> None:
        """Into the draft."""
        self._draft.remember(NAME, dict(self._since) or None)
