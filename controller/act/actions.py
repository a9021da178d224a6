# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller can do to a job."""

from controller.model import GpuSet, JobId, value


@value
class Action:
    """To one job, for this reason."""

    job_id: JobId
    reason: str

    @property
    def kind(self) -> str:
        """As users read it: `place`."""
        return type(self).__name__.lower()


@value
class Place(Action):
    """Bind a queued job and let Slurm start it."""

    gpus: GpuSet
    allocation: GpuSet


@value
class Suspend(Action):
    """Take a job off its GPUs and, in suspend mode `slurm`, suspend it in Slurm. Also completes a suspend
    that was cut short after the job had left its GPUs."""

    saves: bool = False
    """Before it leaves them it writes its state into its checkpoint store: off them it cannot."""


@value
class Resume(Action):
    """Let a job go on, on these GPUs. Also recovers a job whose parts disagree (`Phase.STUCK`)."""

    gpus: GpuSet


@value
class Resize(Action):
    """Have a running job go on with another number of GPUs of its allocation."""

    gpus: GpuSet


@value
class Requeue(Action):
    """Stop a job and put it back into the queue; it starts again from its own checkpoint."""

    reserve: GpuSet = frozenset()
    """The allocation elsewhere that is promised to it: kept from ordinary jobs until it starts there."""
    trespasses: bool = False
    """It may do so again: it waits, longer each time."""


@value
class Migrate(Action):
    """Have a job's sessions write its state into its checkpoint store, and put it back into the queue; it
    starts from there: on the GPUs promised to it, where it migrates, grows or shrinks."""

    reserve: GpuSet = frozenset()
    """As of `Requeue`."""


@value
class Save(Action):
    """Have a job's sessions write its state into its checkpoint store. The job goes on where it is."""


@value
class Cancel(Action):
    """End a job for good: it cannot be suspended, and the site says so (`suspend.unsuspendable`)."""


@value
class Withdraw(Action):
    """Take back a release that no plan waits for, or restore the controller's hold."""


FREES = (Suspend, Resize, Requeue, Migrate, Cancel, Withdraw)
"""Actions that free GPUs; they come first."""
