# SPDX-License-Identifier: GPL-2.0-or-later
"""Requeue, cancel and withdraw: Slurm takes a job off its GPUs, or back into the queue."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controller.act.actions import Cancel, Requeue, Withdraw
from controller.act.context import PLACE_RETRY_SECONDS, Context, JobEnded, Operation
from controller.act.place import names, take_back
from controller.act.recorder import Step
from controller.cluster.port import OVER, JobState
from controller.errors import ClusterError, ClusterRefused
from controller.model import GpuSet, Job, JobId, Unsuspendable
from controller.observe.memory import FIRST_PAUSE_SECONDS, doubled

log = logging.getLogger(__name__)


async def requeue(operation: Operation, action: Requeue) -> None:
    """The job is back in the queue, held."""
    reserved = await reserve(operation, action.reserve)
    await back_to_queue(operation, action.reason, operation.context.clock.now())
    if action.trespasses:
        memory = operation.context.memory.change(action.job_id)
        memory.trespassed += 1
        pause_seconds = doubled(FIRST_PAUSE_SECONDS, memory.trespassed)
        words = f"waits {pause_seconds:.0f} s: {action.reason}"
        operation.context.hold(action.job_id, pause_seconds, "trespass", words)
    if not reserved:
        await reserve(operation, action.reserve, has_left=True)


async def back_to_queue(operation: Operation, reason: str, began: float) -> None:
    """Slurm stops the job and has it in the queue again, held. `began`: when its way off its GPUs did."""
    context, job = operation.context, operation.job
    operation.step(Step.REQUEUE)
    await _or_stays(operation, "requeue-failed", context.cluster.requeue)
    seen = await context.until(job.id, "requeue", JobState.PENDING, JobState.ENDED)
    if seen.state is JobState.ENDED:
        raise JobEnded(f"job {job.id} ended while it was being requeued")
    context.end_slice(job.id, reason, began)
    context.took(job, "checkpoint", began)
    context.ledger.release(job.id)


async def reserve(operation: Operation, gpus: GpuSet, *, has_left: bool = False) -> bool:
    """Keep ordinary jobs off the GPUs that the job migrates to. Where that fails it stays where it is;
    one that has left its GPUs cannot go back, and takes its chance.

    False: that is left for later. Other jobs of ours have all of these GPUs in Slurm, which keeps ordinary
    ones off them as well, and a reservation may need a core that they take.
    """
    context, job = operation.context, operation.job
    if not gpus or not context.settings.cluster.reserve_seconds:
        return True
    try:
        operation.step(Step.RESERVE)
        context.reservations.made(job.id, gpus)
        await context.cluster.reserve(job.id, gpus, context.settings.cluster.reserve_seconds)
    except ClusterError as error:
        if has_left:
            message = f"an ordinary job may get {names(gpus)}, where the job migrates to: {error}"
            context.recorder.event("reserve-failed", message, context.clock.now(), job.id)
            log.warning("job %s: %s", job.id, message)
        elif isinstance(error, ClusterRefused) and all(context.ledger.allocated({gpu}) for gpu in gpus):
            return False
        else:
            words = f"does not migrate, as {names(gpus)} cannot be kept for it"
            _stays(context, job, "reserve-failed", error, words)
            raise
    return True


async def _or_stays(operation: Operation, kind: str, call: Callable[[JobId], Awaitable[None]]) -> None:
    """A call to Slurm that takes the job from where it is. Refused, as its user may have said --no-requeue
    since, the job stays there."""
    context, job = operation.context, operation.job
    try:
        await context.patiently(call, job.id)
    except ClusterRefused as refused:
        if not await context.has_ended(job.id):
            _stays(context, job, kind, refused)
        raise


async def cancel(operation: Operation, action: Cancel) -> None:
    """The job is over. Its slice ends when that is observed, at the time that Slurm states."""
    context, job = operation.context, operation.job
    operation.step(Step.CANCEL)
    await _or_stays(operation, "cancel-failed", lambda job_id: context.cluster.end(job_id, action.reason))
    context.recorder.event("cancelled", action.reason, context.clock.now(), job.id)
    log.warning("job %s (user %s): cancelled: %s", job.id, job.user, action.reason)
    await context.until(job.id, "its cancellation", *OVER)


async def withdraw(operation: Operation, _action: Withdraw) -> None:
    """The job is held again."""
    operation.step(Step.UNDO)
    await take_back(operation.context, operation.job.id)


def _stays(context: Context, job: Job, kind: str, refused: ClusterError, words: str = "") -> None:
    """Slurm does not take the job from where it is. On its GPUs it keeps them until the next try; off them it
    can have its turns meanwhile."""
    seconds, on_gpus = context.settings.suspend.retry_after_seconds, bool(job.placement.gpus)
    message = f"{words}: {refused}" if words else str(refused)
    context.hold(job.id, seconds if on_gpus else PLACE_RETRY_SECONDS, kind, message)
    memory, until = context.memory.change(job.id), context.clock.now() + seconds
    if on_gpus:
        memory.unsuspendable_until = until
    else:
        memory.unsavable_until = until
    if memory.failed_suspends is not None:
        memory.failed_suspends = replace(memory.failed_suspends, way_out=Unsuspendable.KEEP)
