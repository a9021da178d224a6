# SPDX-License-Identifier: GPL-2.0-or-later
"""What a kind of lanes says to the mechanism that serves orders."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from controller.model import Changes, Job, JobId, Placement, Reason, Snapshot, Why
from controller.policies.mechanisms.ranks import Ranks
from controller.policies.mechanisms.row import Row
from controller.policies.placement.draft import Draft, Room


class Lanes(Room, Protocol):
    """Who competes where, and which GPUs fit. `GangLanes` and `SliceLanes` are the two kinds."""

    notes_on_arrival: bool
    """A job gets its note when it comes; else when it joins a lane."""

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        """Begin anew. `common`: as `common()` gave it, or damaged. `rows`: all jobs, none of them yet; it
        follows what is observed."""

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        """False: they offer other GPUs than before, so begin anew."""

    def common(self) -> Mapping[str, Any]:
        """What is to be remembered beyond jobs."""
        return {}

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned."""

    def kept_until(self, job: Job) -> float:
        """Until then a job that runs is not stopped, whatever its place. -inf: it may be."""
        return -math.inf

    def enter(self, row: Row, now: float) -> float:
        """Put a job where it stands; returns when that changes by itself."""

    def leave(self, row: Row) -> None:
        """Take it out again."""

    def rekey(self, ranks: Ranks) -> None:
        """The keys of all jobs that are in lanes are others."""
        return  # lanes that ask for keys whenever they decide

    def decide(self, draft: Draft, now: float, ranks: Ranks) -> None:
        """Who runs where."""

    def waits(self, row: Row, words: str) -> Why:
        """Why a job waits, for people. `words`: what the order says."""
        return Why(Reason.WAITS_FOR_TURN, words)

    def wake(self, ranks: Ranks) -> float:
        """When to decide again, beyond the jobs' own times."""
