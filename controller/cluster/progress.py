# SPDX-License-Identifier: GPL-2.0-or-later
"""How the jobs of a simulated cluster get on with their work, where time alone does not say it."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from controller.cluster.simulated_job import SimulatedJob

Clock: TypeAlias = Callable[[], float]
End: TypeAlias = Callable[[SimulatedJob, str, float], None]
"""Ends a job: with the state that Slurm shows, and when its work was done."""


class Progress(Protocol):
    """A part of a site's own (`simulation.progress`), which ends jobs. What a job may do is its
    `allowed_seconds`."""

    def attach(self, clock: Clock, end: End) -> None:
        """Called once, before all else."""
        ...

    def begin(self, job: SimulatedJob, now: float) -> None:
        """The job works at its rate from now on."""
        ...

    def stop(self, job: SimulatedJob) -> None:
        """The job works no more."""
        ...
