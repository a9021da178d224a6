# SPDX-License-Identifier: GPL-2.0-or-later
"""Resume: a suspended job goes on, on the same or other GPUs of its allocation."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller.act import residuals
from controller.act.actions import Resume
from controller.act.recorder import Step
from controller.act.site import PLACE_RETRY_SECONDS, JobEnded, Operation, Site, put
from controller.errors import GandivaError, NodeError, NodeUnreachable
from controller.model import GpuSet, Job, JobId, Phase, by_node

log = logging.getLogger(__name__)
T = TypeVar("T")

_STILL_OFF = frozenset({"gpu_busy", "unsupported"})
"""Errors after which the job is off its GPUs as before: they are not free, or it cannot move to them."""


async def resume(operation: Operation, action: Resume) -> None:
    """On failure the job stays off its GPUs where that is known; else its next phase shows where it is."""
    site, job = operation.site, operation.job
    operation.step(Step.CLAIM)
    beside = site.beside(job.id)
    await site.ledger.claim(job.id, action.gpus, beside)
    began = site.clock.now()
    try:
        residuals.require_room(job, action.gpus, site.seen, site.left)
    except NodeError as failure:
        site.hold(job.id, PLACE_RETRY_SECONDS, "resume-failed", str(failure))
        site.ledger.release(job.id)
        raise
    asked_at: float | None = None
    try:
        if site.suspends_in_slurm or job.phase is not Phase.YIELDED:
            operation.step(Step.SLURM_RESUME)
            seconds = site.settings.suspend.resume_deadline_seconds
            await put(site.nodes.open, job.id, action.gpus, job.placement.allocation, beside, seconds)
            await site.patiently(site.cluster.resume, job.id)
        operation.step(Step.NODE_RESUME)
        asked_at = site.clock.now()
        await put_back(site, job, action.gpus, beside)
    except GandivaError as failure:
        if await site.has_ended(job.id):
            site.ledger.release(job.id)
            raise JobEnded(f"job {job.id} ended while it was being resumed") from failure
        site.hold(job.id, PLACE_RETRY_SECONDS, "resume-failed", str(failure))
        if isinstance(failure, NodeUnreachable):
            site.memory.change(job.id).resumed_at = asked_at
        nowhere_back = asked_at is None or len(by_node(job.placement.allocation)) == 1
        if isinstance(failure, NodeError) and failure.kind in _STILL_OFF and nowhere_back:
            # A gang over several nodes may be back on some of them: it counts as STUCK and is tried again.
            operation.step(Step.UNDO)
            await stays_off(site, job)
            site.ledger.release(job.id)
        elif asked_at is None:
            # Slurm has resumed it or not: off its GPUs it can open none in either case.
            operation.step(Step.UNDO)
            with contextlib.suppress(GandivaError):
                await site.stop_processes(job)
        raise
    site.begin_slice(job.id, action.gpus, began)
    site.took(job, "restore", began)


async def stays_off(site: Site, job: Job) -> None:
    """The job, which is off its GPUs, is suspended as before."""
    if site.suspends_in_slurm:
        await site.patiently(site.cluster.suspend, job.id)
    await site.stop_processes(job)


async def put_back(site: Site, job: Job, gpus: GpuSet, beside: frozenset[JobId]) -> None:
    """The job's state returns to its GPUs on all nodes. `beside`: jobs that may have memory on them too."""
    allocation, seconds = job.placement.allocation, site.settings.suspend.resume_deadline_seconds
    await once_thawed(site, job, lambda: put(site.nodes.resume, job.id, gpus, allocation, beside, seconds))


async def once_thawed(site: Site, job: Job, call: Callable[[], Awaitable[T]]) -> T:
    """A call that wants the job's processes to run."""
    try:
        return await call()
    except NodeError as failure:
        if failure.kind != "halted" or not site.suspends_in_slurm:
            raise
        # Slurm takes it for running and would not resume it, yet it is frozen: a slurmctld that was killed
        # forgets the suspends of its last seconds. Suspended once more, it can be resumed.
        message = f"{failure}; suspending and resuming it in Slurm once more"
        log.warning("job %s: %s", job.id, message)
        site.recorder.event("thawed", message, site.clock.now(), job.id)
        await site.patiently(site.cluster.suspend, job.id)
        await site.patiently(site.cluster.resume, job.id)
        return await call()
