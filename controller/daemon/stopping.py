# SPDX-License-Identifier: GPL-2.0-or-later
"""The orderly end of a controller, and what becomes of the jobs (`daemon.at_stop`).

`leave`: operations under way are finished, and jobs stay as they are. `release`: after that suspended jobs go
on where their GPUs are free and run to their end without a controller, and waiting jobs are ordinary jobs of
Slurm again. Jobs whose GPUs other jobs have stay suspended: the log names them, and the next controller goes
on with them. See docs/high-availability.md."""

import asyncio
import logging
import time

from controller.cluster.port import ClusterPort, JobState
from controller.errors import ClusterError, ClusterUnavailable, GandivaError
from controller.loop.failures import go_on
from controller.loop.loop import Controller
from controller.model import IN_HOST_MEMORY, JobId, Memory, Plan, Reason, Snapshot, Why
from controller.reports.text import some

log = logging.getLogger(__name__)

DRAIN_SHARE = 0.6
"""Part of the deadline in which operations under way may end."""
_CYCLE_SECONDS = 0.2
_NAMED = 50


class Release:
    """A policy that stops no job and lets suspended ones go on."""

    def __init__(self) -> None:
        self.seen: Snapshot | None = None
        """What it planned for last."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        self.seen = snapshot
        return go_on(snapshot, Why(Reason.ITS_TURN, "the controller stops"), elsewhere=True)


async def stop_in_order(
    controller: Controller, cluster: ClusterPort, *, release: bool, deadline_seconds: float
) -> None:
    """Call when the loop has ended. Returns within the deadline, plus one call to Slurm at most."""
    until = time.monotonic() + deadline_seconds
    log.info("stopping: %s", "jobs are released" if release else "jobs stay as they are")
    if not await controller.executor.drain(deadline_seconds * (DRAIN_SHARE if release else 1.0)):
        log.warning("some operations were still under way; the next controller completes them")
    if not release:
        return
    try:
        await asyncio.wait_for(_release(controller, cluster), max(0.1, until - time.monotonic()))
    except asyncio.TimeoutError:
        log.warning(
            "not all jobs could be released within %g s (daemon.stop_deadline_seconds); the next controller "
            "goes on with them",
            deadline_seconds,
        )
    except GandivaError as error:
        log.error("jobs are not released: %s; the next controller goes on with them", error)


async def _release(controller: Controller, cluster: ClusterPort) -> None:
    # Suspended jobs first: the loop, which resumes them, would take a released job for a stale release.
    resumed, left = await _resume(controller)
    given: list[JobId] = []
    kept: list[JobId] = []
    for job in sorted((await cluster.observe()).jobs, key=lambda job: (job.submit_time, job.id)):
        if job.state is not JobState.PENDING or not job.held or job.user_hold:
            continue
        # What its user would have submitted without Gandiva: whole GPUs, no hold.
        try:
            await cluster.unbind(job.id)
            await cluster.release(job.id)
            given.append(job.id)
        except ClusterError as error:
            log.warning("job %s (user %s): stays held: %s", job.id, job.user, error)
            kept.append(job.id)
    log.info("released: %d jobs back on their GPUs, %d waiting jobs given to Slurm", len(resumed), len(given))
    held = "held, until a controller starts or an operator releases them"
    suspended = "suspended, until a controller starts, because other jobs are on their GPUs"
    for words, jobs in {held: kept, suspended: left}.items():
        if jobs:
            log.warning("still %s: jobs %s", words, some(jobs, _NAMED))


async def _resume(controller: Controller) -> tuple[list[JobId], list[JobId]]:
    """Let suspended jobs go on where their GPUs are free. Returns those that do, and those that do not."""
    release = Release()
    controller.use("release", release)
    await controller.cycle()
    before = _off_gpus(release.seen)
    while controller.executor.in_flight():
        await controller.executor.drain(_CYCLE_SECONDS)
        await controller.cycle()
    left = _off_gpus(release.seen)
    return sorted(before - left), sorted(left)


def _off_gpus(snapshot: Snapshot | None) -> set[JobId]:
    if snapshot is None:
        raise ClusterUnavailable("the cluster cannot be observed")
    return {job.id for job in snapshot.jobs.values() if job.phase in IN_HOST_MEMORY}
