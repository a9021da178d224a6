# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as a mechanism knows it: a cache of what snapshot and notes say."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller.model import UNPROFILED, Job, JobId, Note, Placement, Profile, Usage


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
    usage: Usage
    profile: Profile = UNPROFILED
    note: Note = None
    standing: Standing = ASIDE
    key: Key = ()
    shape: Shape = (0,)
    in_line: bool = False
    """It is in a lane, or in a queue, under its key and shape."""

    @property
    def id(self) -> JobId:
        return self.job.id


class HasJob(Protocol):
    @property
    def job(self) -> Job: ...


def is_guest(job_id: JobId, placement: Placement, rows: Mapping[JobId, HasJob]) -> bool:
    """Whether another job on just the same GPUs, its host, is counted for both."""
    if not placement.guest(job_id):
        return False
    host = rows.get(min(placement.shares_with))
    return host is not None and host.job.placement.gpus == placement.gpus
