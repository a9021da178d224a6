# SPDX-License-Identifier: GPL-2.0-or-later
"""Place: bind a queued job to its GPUs and let Slurm start it."""

import asyncio
import logging
from collections.abc import Collection

from controller.act import residuals
from controller.act.actions import Place
from controller.act.context import NODE_CALL_SECONDS, PLACE_RETRY_SECONDS, Context, JobEnded, Operation, put
from controller.act.recorder import Step
from controller.cluster.port import JOB_REASONS, LIMIT_REASONS, NODE_REASONS, ON_NODES, OVER, ClusterJob
from controller.errors import ClusterRefused, ClusterUnavailable, GandivaError, UnknownJob
from controller.model import GpuSet, Job, JobId, by_node
from controller.observe.memory import group

log = logging.getLogger(__name__)

_LASTING_SECONDS = 5.0
"""A job at a limit may start when another one ends just now, and what Slurm says may be old; after that the
GPUs of a job with a reason that lasts are others'."""


class _NotStarted(ClusterRefused):
    """Slurm did not start it, for this reason."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(f"Slurm did not start it within {seconds:.0f} s (reason: {reason or 'none given'})")
        self.reason = reason or "none given"


class _HeldByOther(ClusterRefused):
    """Slurm itself, or an operator, holds the job now. To hold it again would take that hold away."""


async def place(operation: Operation, action: Place) -> None:
    """Claim, prepare, bind, release, and wait for the start. What fails is taken back."""
    context, job = operation.context, operation.job
    operation.step(Step.CLAIM)
    await context.ledger.claim(job.id, action.gpus, context.beside(job.id))
    began = context.clock.now()
    try:
        residuals.require_room(job, action.gpus, context.seen, context.left)
        operation.step(Step.PREPARE)
        beside, seconds = context.beside(job.id), NODE_CALL_SECONDS
        allocation, prepare = action.allocation, context.nodes.prepare
        await put(prepare, job.id, action.gpus, allocation, beside, seconds, uid=job.uid)
        operation.step(Step.BIND)
        await context.cluster.bind(job.id, action.allocation)
        operation.step(Step.RELEASE)
        await context.cluster.release(job.id)
        operation.step(Step.AWAIT_START)
        released = context.clock.now()
        started = await _await_start(context, job.id)
    except GandivaError as failure:
        pause_seconds = PLACE_RETRY_SECONDS
        if isinstance(failure, _NotStarted):
            pause_seconds = _remember(context, job, by_node(action.allocation), failure.reason)
        context.hold(job.id, pause_seconds, "place-failed", str(failure))
        if not isinstance(failure, UnknownJob | JobEnded | _HeldByOther):
            operation.step(Step.UNDO)
            await take_back(context, job.id)
        context.ledger.release(job.id)
        raise
    context.memory.start_done(job)
    if started.state in OVER:
        _charge(context, started, action.gpus, released)
        context.ledger.release(job.id)
        raise JobEnded(f"job {job.id} ended before it was seen running")
    if started.binding != action.allocation:
        # From now on these are its GPUs; the next snapshot says so too.
        message = f"started on {names(started.binding)} instead of {names(action.allocation)}"
        context.recorder.event("binding-differs", message, context.clock.now(), job.id)
        log.error("job %s: %s; it stays there. Who changed its request?", job.id, message)
    # Slurm may have been away when it started; its own time counts where it can be true.
    since = started.start_time
    believable = since is not None and released <= since <= context.clock.now()
    context.begin_slice(job.id, action.gpus, began, since if believable else None)
    context.took(job, "start", began)


def _remember(context: Context, job: Job, nodes: Collection[str], reason: str) -> float:
    """That Slurm did not start a job on these nodes. Returns for how long nothing is tried with it."""
    now, limit = context.clock.now(), reason.startswith(LIMIT_REASONS)
    about_nodes = not limit and not reason.startswith(JOB_REASONS)
    until = context.memory.start_failed(job, nodes, reason, now, limit=limit, about_nodes=about_nodes)
    if limit:
        for other in context.seen.jobs.values():
            if group(other) == group(job):
                context.memory.change(other.id)  # it is looked at once more
    return until - now


def _charge(context: Context, job: ClusterJob, gpus: GpuSet, released: float) -> None:
    """A job that is over and was not seen running was on its GPUs for as long as Slurm states, since its
    release at the earliest: Slurm's times are whole seconds."""
    assert job.start_time is not None
    now = context.clock.now()
    since = min(max(released, job.start_time), now)
    context.begin_slice(job.id, gpus, now, since)
    if job.end_time is not None:
        end = min(since + max(0.0, job.end_time - job.start_time), now)
        if context.memory.stopped(job.id, end):
            context.recorder.slice_ends(job.id, "job ended", end)


async def _await_start(context: Context, job_id: JobId) -> ClusterJob:
    """Until Slurm says RUNNING, or that it ran. Raises ClusterRefused at the start deadline, and long before
    it where what stands in the way does not pass by waiting, or somebody else holds the job."""
    begin = context.clock.now()
    deadline = begin + context.settings.suspend.start_deadline_seconds
    pause_seconds = 0.05
    while True:
        try:
            job = await context.cluster.job(job_id)
        except ClusterUnavailable:
            if context.clock.now() >= deadline:
                raise
        else:
            if job.state in ON_NODES or (job.state in OVER and job.start_time is not None):
                return job
            if job.state in OVER:
                raise JobEnded(f"job {job_id} ended while it was starting")
            if job.user_hold:
                raise _HeldByOther(f"Slurm did not start it: {job.obstacle}")
            now = context.clock.now()
            lasts = job.held or job.reason.startswith(LIMIT_REASONS + JOB_REASONS + NODE_REASONS)
            if now >= deadline or (lasts and now >= begin + _LASTING_SECONDS):
                forgotten = ClusterRefused("Slurm has forgotten its release, as when slurmctld is killed")
                raise forgotten if job.held else _NotStarted(now - begin, job.reason)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(1.0, pause_seconds * 1.5)


async def take_back(context: Context, job_id: JobId) -> None:
    """Hold it again. If it started in the last moment, it runs; the next snapshot shows it."""
    try:
        await context.cluster.hold(job_id)
        await context.cluster.unbind(job_id)
    except ClusterRefused as refused:
        log.info("job %s: not taken back: %s", job_id, refused)


def names(gpus: GpuSet) -> str:
    """For messages."""
    return ",".join(str(gpu) for gpu in sorted(gpus)) or "no GPU"
