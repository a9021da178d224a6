# SPDX-License-Identifier: GPL-2.0-or-later
"""The orderly end of a controller, and what becomes of the jobs (`daemon.at_stop`).

`leave`: what is under way is finished, and jobs stay as they are. `release`: after that every GPU has a job
on it that can run to its end without a controller, where there is one, and jobs that wait are Slurm's own
again. Jobs whose GPUs others have stay suspended, since two jobs' memory on one GPU is what never happens;
they are named, and the next controller goes on with them. See docs/high-availability.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from controller.errors import ClusterError, ClusterUnavailable, GandivaError
from controller.loop import Controller
from controller.model import ON_GPU, Assignment, GpuId, GpuSet, Job, JobId, Phase, Plan, Snapshot
from controller.slurm.port import ClusterPort, JobState, SlurmJob

log = logging.getLogger(__name__)

DRAIN_SHARE = 0.6
"""How much of the deadline may go by in waiting for operations that are under way."""
_TICK_SECONDS = 0.2
_OFF_GPU = frozenset({Phase.SUSPENDED, Phase.YIELDED})
_NAMED = 50


class Release:
    """A policy that stops nothing and lets go on what can: one job per GPU, those that began first."""

    name = "release"

    def __init__(self) -> None:
        self.seen: Snapshot | None = None
        """What it planned for last."""

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """A function of the snapshot."""
        self.seen = snapshot
        free = _free(snapshot)
        assignments: dict[JobId, Assignment] = {}
        for job in sorted(snapshot.jobs.values(), key=_began):
            if job.phase not in _OFF_GPU or job.id in snapshot.busy:
                continue
            gpus = _place(job, free)
            if gpus:
                free -= gpus
                assignments[job.id] = Assignment(run=True, gpus=gpus, binding=job.binding)
        return Plan(assignments, dict.fromkeys(assignments, "the controller stops"), state)


def _free(snapshot: Snapshot) -> set[GpuId]:
    held: set[GpuId] = set()
    for job in snapshot.jobs.values():
        if job.phase in ON_GPU or job.id in snapshot.busy:
            held |= job.running_on or job.binding
    return {
        gpu.id
        for node in snapshot.nodes.values()
        for gpu in node.gpus
        if gpu.healthy
        and gpu.ordinary_job is None
        and gpu.memory_used_bytes is not None
        and gpu.id not in held
    }


def _began(job: Job) -> tuple[int, float, int]:
    return (-job.priority_class, job.start_time or job.submit_time, job.id)


def _place(job: Job, free: set[GpuId]) -> GpuSet:
    """Where the job can go on; empty: nowhere. Its old GPUs are best, others only on one node."""
    if job.running_on <= free:
        return job.running_on
    choice = sorted(job.binding & free)
    one_node = len({gpu.node for gpu in job.binding}) == 1
    if job.movable and one_node and len(choice) >= len(job.running_on):
        return frozenset(choice[: len(job.running_on)])
    return frozenset()


async def stop_in_order(
    controller: Controller, cluster: ClusterPort, *, release: bool, deadline_seconds: float
) -> None:
    """Call when the loop has ended. Returns within the deadline, give or take one call to Slurm."""
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
    # The suspended first: to the loop, which resumes them, a waiting job that is released looks like a
    # start that nobody waits for.
    resumed, left = await _resume(controller)
    view = await cluster.observe()
    given, kept = await _give_back(cluster, [job for job in view.jobs if _waits_for_us(job)])
    log.info("released: %d jobs back on their GPUs, %d waiting jobs given to Slurm", len(resumed), len(given))
    if kept:
        log.warning(
            "still held, until a controller starts or an operator releases them: jobs %s", _names(kept)
        )
    if left:
        log.warning(
            "still suspended, until a controller starts, because other jobs are on their GPUs: jobs %s",
            _names(left),
        )


def _waits_for_us(job: SlurmJob) -> bool:
    return job.state is JobState.PENDING and job.held and not job.user_hold


async def _give_back(cluster: ClusterPort, jobs: list[SlurmJob]) -> tuple[list[JobId], list[JobId]]:
    """Make them what their users would have submitted without Gandiva: whole GPUs, no hold."""
    given: list[JobId] = []
    kept: list[JobId] = []
    for job in sorted(jobs, key=lambda job: (job.submit_time, job.id)):
        try:
            await cluster.unbind(job.id)
            await cluster.release(job.id)
            given.append(job.id)
        except ClusterError as error:
            log.warning("job %s (user %s): stays held: %s", job.id, job.user, error)
            kept.append(job.id)
    return given, kept


async def _resume(controller: Controller) -> tuple[list[JobId], list[JobId]]:
    """Let suspended jobs go on where their GPUs are free. Returns those that do, and those that do not."""
    release = Release()
    controller.use(release)
    await controller.tick()
    before = _off_gpus(release.seen)
    while controller.executor.in_flight():
        await controller.executor.drain(_TICK_SECONDS)
        await controller.tick()
    left = _off_gpus(release.seen)
    return sorted(before - left), sorted(left)


def _off_gpus(snapshot: Snapshot | None) -> set[JobId]:
    if snapshot is None:
        raise ClusterUnavailable("the cluster cannot be observed")
    return {job.id for job in snapshot.jobs.values() if job.phase in _OFF_GPU}


def _names(jobs: list[JobId]) -> str:
    names = ", ".join(str(job_id) for job_id in jobs[:_NAMED])
    return names + (f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else "")
