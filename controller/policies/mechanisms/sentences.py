# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva explain` says of jobs that no lane decides about, and of those it starts and stops."""

import time

from controller.model import Job

STARTS = "its turn, and the GPUs are free"
PARTED = "has its GPUs to itself again: the job that it shared them with has left them"


def stops(words: str) -> str:
    """A job that others come before. `words`: its place in the order from now on."""
    return f"stops for jobs before it: {words}"


def aside(job: Job) -> str:
    """A job off its GPUs that no plan can start."""
    if job.held_until is None:
        return job.obstacle or "may not start yet"
    what = "resume" if job.placement.allocation else "start"
    why = f" ({job.failed_start})" if job.failed_start else ""
    return f"{what} failed{why}; retry at {clock(job.held_until)}"


def still_on(job: Job) -> str:
    """A job that was to leave its GPUs, or to wait, and is on them."""
    if job.held_until is not None:
        return f"keeps its GPUs: an operation on it failed; retry at {clock(job.held_until)}"
    if not job.may_stop:
        return "keeps its GPUs: it cannot be suspended at present"
    return "goes on with its GPUs"


def resized(job: Job) -> str:
    """A job that starts with another number of GPUs than it asked for."""
    where = ",".join(sorted({gpu.node for gpu in job.promised}))
    return f"goes on with {job.promised_size} GPUs of {where}: it asked for {job.request.size.wanted}"


def clock(at: float) -> str:
    """`14:03:09`."""
    return time.strftime("%H:%M:%S", time.localtime(at))
