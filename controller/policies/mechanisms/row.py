# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as a mechanism knows it: a cache of what snapshot and notes say."""

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.model import UNPROFILED, GpuSet, Job, JobId, Note, Placement, Profile, Usage


class Standing(enum.Enum):
    """What a plan can do with a job."""

    WAITING = "waiting"
    RUNNING = "running"
    """May be stopped."""
    FIXED = "fixed"
    """On its GPUs, and stays there for now."""
    ASIDE = "aside"
    """Neither on GPUs nor a candidate: leaving them, ineligible, or held after a failure."""


WAITING, RUNNING, FIXED, ASIDE = Standing.WAITING, Standing.RUNNING, Standing.FIXED, Standing.ASIDE

Key = tuple[Any, ...]
"""(-priority class, behind others, the share rank, the order's rank, job id)."""
Shape = tuple[Hashable, ...]
"""Jobs of one shape fit or do not fit in the same way. The first item is how many GPUs they take."""


@dataclass(slots=True, eq=False)
class Row:
    """One job."""

    job: Job
    usage: Usage = field(default_factory=Usage)
    profile: Profile = UNPROFILED
    note: Note = None
    standing: Standing = ASIDE
    key: Key = ()
    shape: Shape = (0,)
    in_line: bool = False
    """It is in a lane, or in a queue, under its key and shape."""
    id: JobId = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.job.id

    def remembered(self) -> Note:
        """What is to be remembered of it."""
        return self.note


def arrival(row: Row) -> tuple[float, JobId]:
    """First come, first served."""
    return row.job.submit_time, row.id


def standing(job: Job, rows: Mapping[JobId, Row], *, fixed: bool = False, guests: bool = True) -> Standing:
    """What a plan can do with a job.

    Args:
        fixed: on its GPUs it stays there in any case.
        guests: of jobs that share GPUs one stands for all, and its guests leave with it.
    """
    if job.leaving:
        return ASIDE
    if not job.placement.gpus:
        return WAITING if job.may_start else ASIDE
    if fixed or (guests and is_guest(job.id, job.placement, rows)):
        return FIXED
    beside = (rows[job_id].job for job_id in job.placement.shares_with if job_id in rows)
    return RUNNING if job.may_stop and all(other.may_stop for other in beside) else FIXED


def is_guest(job_id: JobId, placement: Placement, rows: Mapping[JobId, Row]) -> bool:
    """Whether another job on just the same GPUs, its host, is counted for both."""
    if not placement.guest(job_id):
        return False
    host = rows.get(min(placement.shares_with))
    return host is not None and host.job.placement.gpus == placement.gpus


def taken(job_id: JobId, placement: Placement, rows: Mapping[JobId, Row]) -> GpuSet:
    """GPUs that a gang keeps from others: a waiting one those that it is promised. Guests are counted with
    their hosts."""
    if is_guest(job_id, placement, rows):
        return frozenset()
    row = rows.get(job_id)
    return placement.gpus or (placement.allocation & row.job.promised if row else frozenset())
