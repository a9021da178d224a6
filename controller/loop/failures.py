# SPDX-License-Identifier: GPL-2.0-or-later
"""What nobody expected, a bug: it costs the part of a cycle that it is in, not the controller."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from controller.errors import NotLeading
from controller.loop.conditions import Conditions
from controller.model import IN_HOST_MEMORY, GpuId, GpuSet, Job, JobId, Placement, Plan, Snapshot, Target, Why
from controller.model.clock import Clock
from controller.observe.memory import doubled
from controller.policies.site import where

log = logging.getLogger(__name__)

CYCLE = "a cycle of the loop"
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
OVER_SECONDS = 60.0
"""A part that has not failed for so long does not fail any more: not every cycle has something for it."""


class Failures:
    """Each is a condition until its part does not fail any more."""

    def __init__(self, conditions: Conditions, clock: Clock, survives: tuple[type[Exception], ...]) -> None:
        self._conditions, self._clock, self._survives = conditions, clock, survives
        self._failed_at: dict[str, float] = {}
        self._cycle_failed = False
        self._cycles = 0
        """That failed as a whole, in a row."""

    @contextmanager
    def cost(self, part: str) -> Iterator[None]:
        """What is survived costs this part only. Raises NotLeading: that ends this time of leading."""
        try:
            yield
        except NotLeading:
            raise
        except self._survives as error:
            self._failed_at[part] = self._clock.now()
            self._cycle_failed |= part == CYCLE
            words = (
                f"internal error in {part}, tried again: {where(error, [])}: {type(error).__name__}: {error};"
                " please report it with the log"
            )
            try:
                self._conditions.begin(f"internal {part}", words, error=error)
            except Exception:
                log.exception("cannot be reported: %s", words)

    def cycle_ended(self) -> float:
        """Seconds to pause: 0 where the cycle did not fail as a whole."""
        begin = self._clock.now() - OVER_SECONDS
        self._failed_at = {part: at for part, at in self._failed_at.items() if at > begin}
        with self.cost("what users see"):
            over = "does not fail any more"
            self._conditions.end_all("internal", lambda part: part not in self._failed_at, over)
        self._cycles = self._cycles + 1 if self._cycle_failed else 0
        self._cycle_failed = False
        return min(doubled(FIRST_PAUSE_SECONDS, self._cycles), LONGEST_PAUSE_SECONDS) if self._cycles else 0.0


def go_on(snapshot: Snapshot, why: Why, *, elsewhere: bool) -> Plan:
    """No job is stopped, and suspended ones go on where GPUs are free: one job per GPU, those that started
    first. `elsewhere`: where the job may move, also on other GPUs of its node."""
    free = _free(snapshot)
    targets: dict[JobId, Target] = {}
    first = sorted(
        snapshot.jobs.values(), key=lambda j: (-j.priority_class, j.start_time or j.submit_time, j.id)
    )
    for job in first:
        if job.phase not in IN_HOST_MEMORY or not job.may_start:
            continue
        if gpus := _place(job, free, elsewhere):
            free -= gpus
            targets[job.id] = Target(Placement(gpus, job.placement.allocation))
    return Plan(targets, dict.fromkeys(targets, why))


def _free(snapshot: Snapshot) -> set[GpuId]:
    held: set[GpuId] = set()
    for job in snapshot.jobs.values():
        if job.placement.gpus or job.switching:
            held |= job.last or job.placement.allocation
    gpus = (gpu for node in snapshot.nodes.values() for gpu in node.gpus)
    return {gpu.id for gpu in gpus if gpu.usable and gpu.id not in held}


def _place(job: Job, free: set[GpuId], elsewhere: bool) -> GpuSet:
    """Where the job can go on; empty: nowhere. Its old GPUs are best, others only on one node."""
    if job.last <= free:
        return job.last
    allocation = job.placement.allocation
    choice = sorted(allocation & free)
    one_node = len({gpu.node for gpu in allocation}) == 1
    if elsewhere and job.may_move and one_node and len(choice) >= len(job.last):
        return frozenset(choice[: len(job.last)])
    return frozenset()
