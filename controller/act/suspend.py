# SPDX-License-Identifier: GPL-2.0-or-later
"""Suspend: the job's memory leaves its GPUs, Slurm suspends it, its processes are seen to have stopped."""

import logging

from controller.act import residuals
from controller.act.actions import Suspend
from controller.act.context import PLACE_RETRY_SECONDS, Context, JobEnded, Operation, gather
from controller.act.place import names
from controller.act.recorder import Step
from controller.act.resume import put_back
from controller.act.store import cannot_write, write_to_store
from controller.errors import ClusterRefused, GandivaError, NodeError
from controller.model import FailedSuspends, GpuId, Job, Phase, SuspendMethod, Unsuspendable, by_node
from controller.nodes.protocol import Offload
from controller.observe.memory import doubled

log = logging.getLogger(__name__)

_OF_THE_JOB = frozenset(
    {"deadline", "driver", "host_memory", "left_on_gpu", "not_cooperative", "unsupported"}
)
"""Kinds of errors that show that a job cannot be suspended; others are its node's."""


async def suspend(operation: Operation, action: Suspend) -> None:
    """On failure the job goes on where it is, and keeps its GPUs."""
    context, job = operation.context, operation.job
    began, left_at = context.clock.now(), None
    try:
        if action.saves:
            await _save(operation)
            began = context.clock.now()
        if job.phase is not Phase.YIELDED and not await _leave_gpus(operation):
            left_at = context.clock.now()
        if context.suspends_in_slurm:
            operation.step(Step.SLURM_SUSPEND)
            await context.patiently(context.cluster.suspend, job.id)
            context.refused.pop(job.id, None)
        operation.step(Step.STOP)
        await context.stop_processes(job)
    except (NodeError, ClusterRefused) as failure:
        await _failed(operation, failure)
        raise
    context.end_slice(job.id, action.reason, began, left_at)
    context.took(job, "suspend", began)
    context.ledger.release(job.id)


async def _save(operation: Operation) -> None:
    """What cannot be written stays unwritten: the job leaves its GPUs all the same."""
    context, job = operation.context, operation.job
    began = context.clock.now()
    operation.step(Step.PAUSE)
    try:
        await pause(context, job)
        await write_to_store(operation, began)
    except NodeError as failure:
        cannot_write(operation, failure, context.alone_seconds(failure))


async def _leave_gpus(operation: Operation) -> bool:
    """Get the job's memory off its GPUs. True: it had none. Raises NodeError with the reason of the last way
    that was tried."""
    context, job, settings = operation.context, operation.job, operation.context.settings.suspend
    method = job.request.suspend or context.settings.requests.suspend
    # Where several GPUs are in use the driver cannot help, and the agent says so; but a job that has not
    # touched any of them yet can be stopped as it is.
    may_checkpoint = len(by_node(job.placement.allocation)) == 1 and (
        method is SuspendMethod.TRANSPARENT or settings.transparent_fallback
    )
    uncooperative: NodeError | None = None
    if method is not SuspendMethod.TRANSPARENT:
        try:
            return await leave_together(operation)
        except NodeError as failure:
            if not may_checkpoint or failure.kind not in ("not_cooperative", "deadline"):
                raise
            uncooperative = failure
            log.info("job %s: %s; trying the driver's checkpoint", job.id, failure)
    operation.step(Step.CHECKPOINT)
    try:
        answers = await context.on_nodes(
            job,
            lambda node: context.nodes.checkpoint(
                node,
                job.id,
                residual_limit_bytes=0,  # the driver takes all of a process off, its context too
                deadline_seconds=settings.offload_deadline_seconds,
            ),
        )
    except NodeError as failure:
        if uncooperative is not None and job.gpus > 1 and failure.kind == "unsupported":
            raise uncooperative from failure  # that is what its user can do something about
        raise
    return all(answer.empty for answer in answers.values())


async def leave_together(operation: Operation) -> bool:
    """With the help of the job's sessions. True: it had nothing on its GPUs. Raises NodeError."""
    context, job = operation.context, operation.job
    operation.step(Step.PAUSE)
    await pause(context, job)
    operation.step(Step.OFFLOAD)
    answers = await context.on_nodes(job, lambda node: _offload(context, node, job))
    context.left[job.id] = {
        GpuId(node, ordinal): size
        for node, answer in answers.items()
        for ordinal, size in answer.left_on.items()
    }
    return all(answer.empty for answer in answers.values())


async def pause(context: Context, job: Job) -> None:
    """All ranks on all nodes at one step boundary (docs/interfaces.md, "Agreeing on one step")."""
    nodes = sorted(by_node(job.placement.allocation))
    deadline_seconds = context.settings.suspend.step_deadline_seconds
    if len(nodes) == 1:
        await context.nodes.pause(nodes[0], job.id, floor_step=0, wait_seconds=deadline_seconds, sole=True)
        return
    deadline = context.clock.now() + deadline_seconds
    floor_step = 0
    while True:
        answers = await gather(
            context.nodes.pause(node, job.id, floor_step=floor_step, wait_seconds=0.2, sole=False)
            for node in nodes
        )
        target = max(answer.target_step for answer in answers)
        # An agent sees the ranks of its own node: some may not have attached yet elsewhere.
        ranks = [rank for answer in answers for rank in answer.ranks]
        complete = len(ranks) >= max((rank.world_size for rank in ranks), default=0)
        if complete and all(a.all_blocked and a.target_step == target for a in answers):
            return
        if context.clock.now() >= deadline:
            late = ", ".join(n for n, answer in zip(nodes, answers, strict=True) if not answer.all_blocked)
            text = f"job {job.id} did not reach step {target} within {deadline_seconds:g} s"
            raise NodeError(late, "deadline", text)
        floor_step = target


async def _offload(context: Context, node: str, job: Job) -> Offload:
    settings, limit_bytes, why = context.settings.suspend, context.settings.suspend.residual_limit_bytes, ""
    if limit_bytes:
        allocated = context.ledger.allocated(job.placement.gpus)
        room_bytes, words = residuals.room(job, node, context.seen, allocated, settings.residual_fraction)
        if room_bytes < limit_bytes:
            limit_bytes, why = room_bytes, words
    try:
        return await context.nodes.offload(
            node,
            job.id,
            residual_limit_bytes=limit_bytes,
            release_context=settings.release_context,
            deadline_seconds=settings.offload_deadline_seconds,
        )
    except NodeError as failure:
        if failure.kind != "left_on_gpu" or not why:
            raise
        # Not for anything of this job's: that never ends it (`suspend.unsuspendable`).
        raise NodeError(node, "gpu_busy", f"{failure.message}; {why}") from failure


async def _failed(operation: Operation, failure: GandivaError) -> None:
    """The job keeps its GPUs. Put it back to work, and leave it alone for a while."""
    context, job = operation.context, operation.job
    context.ledger.stays(job.id)
    if await context.has_ended(job.id):
        raise JobEnded(f"job {job.id} ended while it was being suspended") from failure
    tries, pause_seconds = 0, context.alone_seconds(failure)
    refused = isinstance(failure, ClusterRefused)
    if refused:
        # It may do so for ever, and that is nothing of the job's.
        tries, _ = context.refused.get(job.id, (0, ""))
        context.refused[job.id] = tries + 1, str(failure)
        pause_seconds = doubled(pause_seconds, tries + 1)
    if job.phase is Phase.YIELDED:
        # Its GPUs may be another job's by now: what is observed of it next decides.
        context.hold(job.id, PLACE_RETRY_SECONDS * 2.0 ** min(tries, 5), "suspend-failed", str(failure))
        return
    now, memory, way_out = context.clock.now(), context.memory.change(job.id), Unsuspendable.KEEP
    if isinstance(failure, NodeError) and failure.kind in _OF_THE_JOB:
        before = memory.failed_suspends
        tries = 1 if before is None else before.tries + 1
        way_out = _way_out(context, job, tries)
        since = now if before is None else before.since
        memory.failed_suspends = FailedSuspends(tries, since, str(failure), way_out)
    message = f"could not be taken off {names(job.placement.gpus)}: {failure}; "
    if way_out is Unsuspendable.KEEP:
        memory.unsuspendable_until = now + pause_seconds
        message += f"it keeps them, next try in {pause_seconds:g} s"
    else:
        memory.unsuspendable_until = None
        message += f"failed suspends in a row: {tries}, and suspend.unsuspendable is {way_out.value}"
    context.recorder.event("suspend-failed", message, now, job.id)
    level = logging.INFO if way_out is Unsuspendable.STORE else logging.ERROR
    log.log(level, "job %s (user %s): %s", job.id, job.user, message)
    operation.step(Step.UNDO)
    try:
        if context.suspends_in_slurm and not refused:
            await context.patiently(context.cluster.resume, job.id)
        await put_back(context, job, job.placement.gpus, context.beside(job.id))
    except GandivaError as undo_failure:
        # Its phase will be STUCK or UNKNOWN, and the loop keeps trying.
        log.error("job %s: not back at work yet, tried again every cycle: %s", job.id, undo_failure)


def _way_out(context: Context, job: Job, tries: int) -> Unsuspendable:
    """What the site does with a job whose suspend has failed so many times in a row. A user who has refused
    that the job moves has refused that it is requeued."""
    settings = context.settings.suspend
    allowed = {
        Unsuspendable.STORE: job.has_store and job.may_migrate,
        Unsuspendable.REQUEUE: job.may_requeue and job.request.may_migrate,
    }.get(settings.unsuspendable, True)
    return settings.unsuspendable if allowed and tries >= settings.unsuspendable_tries else Unsuspendable.KEEP
