# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller can do to a job."""

from typing import TypeAlias

from controller.model import GpuSet, JobId, value


@value
class Place:
    """Bind a queued job and let Slurm start it."""

    job_id: JobId
    gpus: GpuSet
    allocation: GpuSet
    reason: str


@value
class Suspend:
    """Take a job off its GPUs and, in suspend mode `slurm`, suspend it in Slurm. Also completes a suspend
    that was cut short after the job had left its GPUs."""

    job_id: JobId
    reason: str


@value
class Resume:
    """Let a job go on, on these GPUs. Also recovers a job whose parts disagree (`Phase.STUCK`)."""

    job_id: JobId
    gpus: GpuSet
    reason: str


@value
class Resize:
    """Have a running job go on with another number of GPUs of its allocation."""

    job_id: JobId
    gpus: GpuSet
    reason: str


@value
class Requeue:
    """Stop a job and put it back into the queue; it starts again from its own checkpoint."""

    job_id: JobId
    reason: str
    reserve: GpuSet = frozenset()
    """The allocation elsewhere that is promised to it: kept from ordinary jobs until it starts there."""
    trespasses: bool = False
    """It may do so again: it waits, longer each time."""


@value
class Migrate:
    """Have a job's sessions write its state into its checkpoint store, and put it back into the queue; it
    starts from there: on the GPUs promised to it, where it migrates, grows or shrinks."""

    job_id: JobId
    reason: str
    reserve: GpuSet = frozenset()
    """As of `Requeue`."""


@value
class Cancel:
    """End a job for good: it cannot be suspended, and the site says so (`suspend.unsuspendable`)."""

    job_id: JobId
    reason: str


@value
class Withdraw:
    """Take back a release that no plan waits for, or restore the controller's hold."""

    job_id: JobId
    reason: str


Action: TypeAlias = Place | Suspend | Resume | Resize | Requeue | Migrate | Cancel | Withdraw
FREES = (Suspend, Resize, Requeue, Migrate, Cancel, Withdraw)
"""Actions that free GPUs; they come first."""
