# SPDX-License-Identifier: GPL-2.0-or-later
"""Resize: a running job goes on with another number of GPUs of its allocation (SPEC 1.6).

Its state goes to host memory and comes back on the other GPUs. Slurm is not asked: the job runs there all the
time, and its allocation has the old GPUs and the new ones. The old ones are its own until it is known to work
on the new ones, so that every failure is undone by putting it back.
"""

import logging

from controller.act import residuals
from controller.act.actions import Resize
from controller.act.place import names
from controller.act.recorder import Step
from controller.act.resume import put_back
from controller.act.site import PLACE_RETRY_SECONDS, JobEnded, Operation
from controller.act.suspend import leave_together
from controller.errors import GandivaError, NodeUnreachable

log = logging.getLogger(__name__)


async def resize(operation: Operation, action: Resize) -> None:
    """On failure the job goes on as it was, where that is known; else its next phase shows where it is."""
    site, job = operation.site, operation.job
    old, new, beside = job.placement.gpus, action.gpus, site.beside(job.id)
    if old - new:
        site.ledger.leaving(job.id)
    operation.step(Step.CLAIM)
    await site.ledger.claim(job.id, new, beside)
    began, asked_at, left_at = site.clock.now(), None, None
    try:
        residuals.require_room(job, new - old, site.seen, site.left)
        await leave_together(operation)
        operation.step(Step.STOP)
        await site.stop_processes(job)
        left_at = site.clock.now()
        site.end_slice(job.id, action.reason, began, left_at)
        operation.step(Step.NODE_RESUME)
        asked_at = site.clock.now()
        await put_back(site, job, new, beside)
    except GandivaError as failure:
        if await site.has_ended(job.id):
            if left_at is not None:
                site.ledger.release(job.id)  # else it may be on its GPUs still: the next snapshot says
            raise JobEnded(f"job {job.id} ended while it changed its size") from failure
        message = f"change from {names(old)} to {names(new)} failed: {failure}"
        site.hold(job.id, PLACE_RETRY_SECONDS, "resize-failed", message)
        if left_at is None:
            # It did not get off its GPUs: as after a failed suspend.
            until = site.clock.now() + site.alone_seconds(failure)
            site.memory.change(job.id).unsuspendable_until = until
        log.warning("job %s (user %s): %s", job.id, job.user, message)
        if asked_at is not None and isinstance(failure, NodeUnreachable):
            # It may be on the new GPUs: what is observed of it next decides.
            site.memory.change(job.id).resumed_at = asked_at
            raise
        operation.step(Step.UNDO)
        await put_back(site, job, old, beside)
        if left_at is not None:
            site.begin_slice(job.id, old, began)
        site.ledger.keep(job.id, old)
        raise
    site.ledger.keep(job.id, new)
    site.begin_slice(job.id, new, began)
    site.took(job, "restore", began)
