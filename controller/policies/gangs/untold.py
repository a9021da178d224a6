# SPDX-License-Identifier: GPL-2.0-or-later
"""Which jobs are to be looked at afresh, where a snapshot does not say: the daemon's never do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.model import Job, JobId, Phase
from controller.policies.differences import as_before
from controller.policies.gangs.member import Member, Standing

_SAME_SECONDS = 1e-5
"""A job has run as long as was foreseen if it is not further off: time of day has parts of 2e-7 s."""


def differing(
    jobs: Mapping[JobId, Job],
    members: Mapping[JobId, Member[Any]],
    now: float,
    *,
    profiled: Callable[[Member[Any]], None],
    first_seen: Callable[[Member[Any]], bool],
    reshaped: Callable[[Member[Any]], bool],
    reshapes: bool,
) -> set[JobId]:
    """Jobs that are new or not as was to be expected. The others' times and profiles are taken over.

    `profiled` hears of those whose profile grew. `first_seen`: whether it is news that a job has run at all.
    `reshaped`: whether one that waits must be placed otherwise than it had to; asked of all gangs if
    `reshapes`, else of those that registered tensors.
    """
    found: set[JobId] = set()
    touch, running, fixed = found.add, Phase.RUNNING, Standing.FIXED
    # Some steps for each job at every look, and most of that time is waiting for memory. So nothing is called
    # that need not be, and what is the same object is not looked into.
    for job_id, job, member in zip(jobs, jobs.values(), map(members.get, jobs), strict=True):
        if member is None:
            touch(job_id)
            continue
        old = member.job
        if job.not_before is not None or not (
            (
                old.not_before is None
                and job.phase is old.phase
                and job.request is old.request
                and job.binding is old.binding
                and job.running_on is old.running_on
                and job.submit_time is old.submit_time
                and job.movable is old.movable
                and job.suspendable is old.suspendable
                and job.priority_class is old.priority_class
                and job.memory_per_node_bytes is old.memory_per_node_bytes
                and job.cpus_per_node is old.cpus_per_node
                and job.excluded_nodes is old.excluded_nodes
                and job.required_nodes is old.required_nodes
            )
            or as_before(old, job)
        ):
            touch(job_id)
            continue
        member.job = job
        if job.phase is running:
            ran = job.run_seconds if job.accrues_since is None else job.run_seconds_at(now)
            late = ran - now - member.ran_from
            if (
                late > _SAME_SECONDS
                or late < -_SAME_SECONDS
                or (old.run_seconds <= 0 < job.run_seconds and first_seen(member))
            ):
                touch(job_id)
            if job.request.model and job.profile != old.profile:
                profiled(member)
        elif (
            job.run_seconds != old.run_seconds
            # Of one that holds GPUs and does not run, nobody can foresee anything.
            or member.standing is fixed
            or (job.request.gpus > 1 and (reshapes or job.profile.largest_tensor_bytes) and reshaped(member))
        ):
            touch(job_id)
    return found
