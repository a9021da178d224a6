# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as the planner of exclusive gangs knows it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller.model import GpuSet, Job
from controller.policies.gangs.lanes import Key, Shape
from controller.policies.gangs.pool import Holding


class Standing(enum.Enum):
    """What a plan can do with a job."""

    WAITING = "waiting"
    RUNNING = "running"
    """May be stopped."""
    FIXED = "fixed"
    """On its GPUs, and stays there for now."""
    ASIDE = "aside"
    """Neither on GPUs nor a candidate now: on its way off them, ineligible, or to be left alone."""


WAITING, RUNNING, FIXED, ASIDE = Standing.WAITING, Standing.RUNNING, Standing.FIXED, Standing.ASIDE
"""The same for the planner: a name is found in a seventh of the time that a member of its class takes, which
counts where each job costs a few dozen such steps."""

A = TypeVar("A")


@dataclass(slots=True)
class Member(Generic[A]):
    """A job, its place, and what the policy remembers of it."""

    job: Job
    account: A
    standing: Standing = ASIDE
    held: GpuSet = frozenset()
    """GPUs counted as its own in the pool."""
    holding: Holding = ()
    """The same as the pool has it."""
    entered: Standing = ASIDE
    """What it is in its lane: one that waits, one that runs, or (ASIDE) not there."""
    lane: int = 0
    entry: Key = ()
    """In the lane: its key, and if it runs the size of its gang after it."""
    shape: Shape = (1,)
    demand: int = 1
    """GPUs that it takes of those that are given out: what it is bound to where nothing starts is not."""
    leaving: bool = False
    """It waits for GPUs of a node where nothing starts any more, and so in no lane (`_let_leave`)."""
    ran_from: float = 0.0
    """When it would have begun, had it run without a break (of a job seen RUNNING): it has run as long as it
    should at any time if this has not moved."""
    timer: float | None = None
    """When it is due; entries of the list of timers that say something else are void."""
