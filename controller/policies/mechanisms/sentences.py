# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva explain` says of jobs that no lane decides about, and of those it starts and stops."""

import time

from controller.model import Job, JobId, Reason, Why, reason_of
from controller.policies.mechanisms.row import ASIDE, Standing

STARTS = Why(Reason.ITS_TURN, "its turn, and the GPUs are free")
PARTED = Why(
    Reason.SHARES_GPUS, "has its GPUs to itself again: the job that it shared them with has left them"
)


def stops(words: str) -> Why:
    """A job that others come before. `words`: its place in the order from now on."""
    return Why(Reason.PREEMPTED, f"stops for jobs before it: {words}")


def unplanned(job: Job, standing: Standing, off_gpus: set[JobId]) -> Why | None:
    """A job that does not wait and that no plan starts or stops; None: what was said of it still holds.
    `off_gpus`: jobs whose last reason is one of a job off its GPUs; kept up to date."""
    if job.switching or job.leaving:
        return None
    if standing is ASIDE:
        off_gpus.add(job.id)
        return _aside(job)
    if job.id not in off_gpus:
        return None
    off_gpus.discard(job.id)
    return _still_on(job)


def _aside(job: Job) -> Why:
    """A job off its GPUs that no plan can start."""
    if job.held_until is None:
        return Why(reason_of(job.obstacle, Reason.NOT_ELIGIBLE), job.obstacle or "may not start yet")
    what = "resume" if job.placement.allocation else "start"
    why = f" ({job.failed_start})" if job.failed_start else ""
    reason = reason_of(job.failed_start, Reason.OPERATION_FAILED)
    return Why(reason, f"{what} failed{why}; retry at {clock(job.held_until)}")


def _still_on(job: Job) -> Why:
    """A job that was to leave its GPUs, or to wait, and is on them."""
    if job.held_until is not None:
        words = f"keeps its GPUs: an operation on it failed; retry at {clock(job.held_until)}"
        return Why(Reason.OPERATION_FAILED, words)
    if not job.may_stop:
        return Why(Reason.CANNOT_BE_SUSPENDED, "keeps its GPUs: it cannot be suspended at present")
    return Why(Reason.KEEPS_GPUS, "goes on with its GPUs")


def resized(job: Job) -> Why:
    """A job that starts with another number of GPUs than it asked for."""
    where = ",".join(sorted({gpu.node for gpu in job.promised}))
    asked = job.request.size.wanted
    return Why(Reason.RESIZED, f"goes on with {job.promised_size} GPUs of {where}: it asked for {asked}")


def clock(at: float) -> str:
    """`14:03:09`."""
    return time.strftime("%H:%M:%S", time.localtime(at))
