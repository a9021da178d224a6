# SPDX-License-Identifier: GPL-2.0-or-later
"""Requeue, cancel and withdraw: Slurm takes a job off its GPUs, or back into the queue."""

import logging
from dataclasses import replace

from controller.act.actions import Cancel, Requeue, Withdraw
from controller.act.place import names, take_back
from controller.act.recorder import Step
from controller.act.site import PLACE_RETRY_SECONDS, JobEnded, Operation, Site
from controller.errors import ClusterError, ClusterRefused
from controller.model import GpuSet, Job, Unsuspendable
from controller.observe.memory import FIRST_PAUSE_SECONDS, doubled
from controller.slurm.port import OVER, JobState

log = logging.getLogger(__name__)


async def requeue(operation: Operation, action: Requeue) -> None:
    """The job is back in the queue, held."""
    reserved = await reserve(operation, action.reserve)
    await back_to_queue(operation, action.reason, operation.site.clock.now())
    if action.trespasses:
        memory = operation.site.memory.change(action.job_id)
        memory.trespassed += 1
        pause_seconds = doubled(FIRST_PAUSE_SECONDS, memory.trespassed)
        operation.site.hold(
            action.job_id, pause_seconds, "trespass", f"waits {pause_seconds:.0f} s: {action.reason}"
        )
    if not reserved:
        await reserve_later(operation, action.reserve)


async def back_to_queue(operation: Operation, reason: str, began: float) -> None:
    """Slurm stops the job and has it in the queue again, held. `began`: when its way off its GPUs did."""
    site, job = operation.site, operation.job
    operation.step(Step.REQUEUE)
    try:
        await site.patiently(site.cluster.requeue, job.id)
    except ClusterRefused as refused:
        if not await site.has_ended(job.id):
            # Its user may have said --no-requeue since.
            _stays(site, job, "requeue-failed", refused)
        raise
    seen = await site.until(job.id, "requeue", JobState.PENDING, JobState.ENDED)
    if seen.state is JobState.ENDED:
        raise JobEnded(f"job {job.id} ended while it was being requeued")
    site.end_slice(job.id, reason, began)
    site.took(job, "checkpoint", began)
    site.ledger.release(job.id)


async def reserve(operation: Operation, gpus: GpuSet) -> bool:
    """Keep ordinary jobs off the GPUs that the job migrates to. Where that fails it stays where it is.

    False: that is left for later. Other jobs of ours have all of these GPUs in Slurm, which keeps ordinary
    ones off them as well, and a reservation may need a core that they take.
    """
    site, job = operation.site, operation.job
    if not gpus or not site.settings.cluster.reserve_seconds:
        return True
    try:
        await _reserve(operation, gpus)
    except ClusterError as error:
        if isinstance(error, ClusterRefused) and all(site.ledger.allocated({gpu}) for gpu in gpus):
            return False
        _stays(
            site, job, "reserve-failed", error, f"does not migrate, as {names(gpus)} cannot be kept for it"
        )
        raise
    return True


async def reserve_later(operation: Operation, gpus: GpuSet) -> None:
    """The job has left its GPUs and cannot go back: without a reservation it takes its chance."""
    site, job = operation.site, operation.job
    try:
        await _reserve(operation, gpus)
    except ClusterError as error:
        message = f"an ordinary job may get {names(gpus)}, where the job migrates to: {error}"
        site.recorder.event("reserve-failed", message, site.clock.now(), job.id)
        log.warning("job %s: %s", job.id, message)


async def _reserve(operation: Operation, gpus: GpuSet) -> None:
    site, job_id = operation.site, operation.job.id
    operation.step(Step.RESERVE)
    site.reservations.made(job_id, gpus)
    await site.cluster.reserve(job_id, gpus, site.settings.cluster.reserve_seconds)


async def cancel(operation: Operation, action: Cancel) -> None:
    """The job is over. Its slice ends when that is observed, at the time that Slurm states."""
    site, job = operation.site, operation.job
    operation.step(Step.CANCEL)
    try:
        await site.patiently(lambda job_id: site.cluster.end(job_id, action.reason), job.id)
    except ClusterRefused as refused:
        if not await site.has_ended(job.id):
            _stays(site, job, "cancel-failed", refused)
        raise
    site.recorder.event("cancelled", action.reason, site.clock.now(), job.id)
    log.warning("job %s (user %s): cancelled: %s", job.id, job.user, action.reason)
    await site.until(job.id, "its cancellation", *OVER)


async def withdraw(operation: Operation, _action: Withdraw) -> None:
    """The job is held again."""
    operation.step(Step.UNDO)
    await take_back(operation.site, operation.job.id)


def _stays(site: Site, job: Job, kind: str, refused: ClusterError, words: str = "") -> None:
    """Slurm does not take the job from where it is. On its GPUs it keeps them until the next try; off them it
    can have its turns meanwhile."""
    seconds, on_gpus = site.settings.suspend.retry_after_seconds, bool(job.placement.gpus)
    message = f"{words}: {refused}" if words else str(refused)
    site.hold(job.id, seconds if on_gpus else PLACE_RETRY_SECONDS, kind, message)
    memory, until = site.memory.change(job.id), site.clock.now() + seconds
    if on_gpus:
        memory.unsuspendable_until = until
    else:
        memory.unsavable_until = until
    if memory.failed_suspends is not None:
        memory.failed_suspends = replace(memory.failed_suspends, way_out=Unsuspendable.KEEP)
