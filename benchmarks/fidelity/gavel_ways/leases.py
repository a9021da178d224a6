# SPDX-License-Identifier: GPL-2.0-or-later
"""Leases of simulated jobs, as in Gavel's simulator: jobs go on in whole steps, and all stop together. Named
as `simulation.progress` in gavel.toml."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from controller.cluster.progress import Clock, End
from controller.cluster.simulated_job import SimulatedJob
from controller.model import GpuId, JobId


@dataclass(slots=True)
class Lease:
    """What one job may do until all leases are renewed."""

    job: SimulatedJob
    steps: int
    """Mini-batches, whole ones."""
    until: float
    """When it has done them."""
    last: bool
    """With them its work is done."""
    fails: bool
    """Of a gang that has fewer steps left than GPUs, Gavel's simulator counts none."""


class Leases:
    """Gives jobs leases. The time ends when the longest lease ends: then jobs whose work is done end, and the
    others get another lease. A job that is done earlier keeps its GPUs until then.

    Jobs on the same GPUs are done when the last of them is. Where the lease of one fails, that of all does,
    and is not counted. Implements `Progress`.
    """

    seconds: ClassVar[float] = 360.0
    """A lease is for as many steps as fit into this time."""
    failures: ClassVar[int] = 5
    """A job whose leases fail so often in a row is dropped. 0: none fails."""

    def __init__(self) -> None:
        self._held: dict[JobId, Lease] = {}
        self._failed: dict[JobId, int] = {}
        """How often in a row."""
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, clock: Clock, end: End) -> None:
        self._clock, self._end = clock, end

    def begin(self, job: SimulatedJob, now: float) -> None:
        """The job works at its rate from now on."""
        self._held[job.id] = self._lease(job, now)
        self._set_timer()

    def stop(self, job: SimulatedJob) -> None:
        """The job works no more."""
        if self._held.pop(job.id, None) is not None:
            job.allowed_seconds = math.inf
            self._set_timer()

    def _lease(self, job: SimulatedJob, now: float) -> Lease:
        speed = job.steps_per_second * job.rate
        left = round((job.work_seconds - job.done_seconds) * job.steps_per_second)
        steps = min(math.floor(self.seconds * speed), left)
        gpus = len(job.binding)
        fails = self.failures > 0 and (steps <= 0 or (gpus > 1 and steps < gpus))
        job.allowed_seconds = 0.0 if fails else steps / job.steps_per_second
        return Lease(job, steps, now + steps / speed, steps == left, fails)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            last = max(lease.until for lease in self._held.values())
            self._timer = asyncio.get_running_loop().call_at(last, self._over)

    def _over(self) -> None:
        """All leases have ended."""
        now, held = self._clock(), self._held
        self._held, self._timer = {}, None
        for together in _together(held.values()):
            fails, until = any(lease.fails for lease in together), max(lease.until for lease in together)
            for lease in together:
                job, lease.fails, lease.until = lease.job, fails, until
                job.done_seconds += 0.0 if fails else job.allowed_seconds
                job.working_since, job.allowed_seconds = now, math.inf
                if len(together) == 1:
                    self._failed[job.id] = self._failed.get(job.id, 0) + 1 if fails else 0
        going_on = [lease.job for lease in held.values() if not self._ended(lease, now)]
        for job in going_on:
            self._held[job.id] = self._lease(job, now)
        self._set_timer()

    def _ended(self, lease: Lease, now: float) -> bool:
        """Whether the job ends with this lease."""
        job = lease.job
        if lease.fails and self._failed.get(job.id, 0) >= self.failures:
            self._end(job, "FAILED", now)
        elif lease.last and not lease.fails:
            self._end(job, "COMPLETED", lease.until)
        else:
            return False
        return True


def _together(leases: Iterable[Lease]) -> Iterable[list[Lease]]:
    """Those of jobs on the same GPUs."""
    found: dict[frozenset[GpuId], list[Lease]] = {}
    for lease in leases:
        found.setdefault(frozenset(lease.job.binding), []).append(lease)
    return found.values()
