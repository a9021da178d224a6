# SPDX-License-Identifier: GPL-2.0-or-later
"""Requeue, cancel and withdraw: Slurm takes a job off its GPUs, or back into the queue."""

import logging
from dataclasses import replace

from controller.act.actions import Cancel, Migrate, Requeue, Withdraw
from controller.act.place import take_back
from controller.act.recorder import Step
from controller.act.site import OVER, JobEnded, Operation, Site
from controller.errors import ClusterRefused
from controller.model import JobId, Unsuspendable
from controller.slurm.port import JobState

log = logging.getLogger(__name__)


async def requeue(operation: Operation, action: Requeue | Migrate, since: float | None = None) -> None:
    """The job is back in the queue, held. `since`: when its way off its GPUs began, if not now."""
    site, job = operation.site, operation.job
    began = site.clock.now() if since is None else since
    operation.step(Step.REQUEUE)
    try:
        await site.patiently(site.cluster.requeue, job.id)
    except ClusterRefused as refused:
        if not await site.has_ended(job.id):
            # Its user may have said --no-requeue since.
            _stays(site, job.id, "requeue-failed", refused)
        raise
    seen = await site.until(job.id, "requeue", JobState.PENDING, JobState.ENDED)
    if seen.state is JobState.ENDED:
        raise JobEnded(f"job {job.id} ended while it was being requeued")
    site.end_slice(job.id, action.reason, began)
    site.took(job, "checkpoint", began)
    site.ledger.release(job.id)


async def cancel(operation: Operation, action: Cancel) -> None:
    """The job is over. Its slice ends when that is observed, at the time that Slurm states."""
    site, job = operation.site, operation.job
    operation.step(Step.CANCEL)
    try:
        await site.patiently(lambda job_id: site.cluster.end(job_id, action.reason), job.id)
    except ClusterRefused as refused:
        if not await site.has_ended(job.id):
            _stays(site, job.id, "cancel-failed", refused)
        raise
    site.recorder.event("cancelled", action.reason, site.clock.now(), job.id)
    log.warning("job %s (user %s): cancelled: %s", job.id, job.user, action.reason)
    await site.until(job.id, "its cancellation", *OVER)


async def withdraw(operation: Operation, _action: Withdraw) -> None:
    """The job is held again."""
    operation.step(Step.UNDO)
    await take_back(operation.site, operation.job.id)


def _stays(site: Site, job_id: JobId, kind: str, refused: ClusterRefused) -> None:
    """Slurm does not take the job off its GPUs: they are its own until the next try."""
    seconds = site.settings.suspend.retry_after_seconds
    site.hold(job_id, seconds, kind, str(refused))
    memory = site.memory.change(job_id)
    memory.unsuspendable_until = site.clock.now() + seconds
    if memory.failed_suspends is not None:
        memory.failed_suspends = replace(memory.failed_suspends, way_out=Unsuspendable.KEEP)
