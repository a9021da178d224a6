# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that decides in rounds: only at multiples of a time, and (where there is a floor) not sooner than
so long after it decided last.

Between these moments the last plan stands. Whatever made somebody ask, an operation's end or a timer of the
policy's own, is decided about at the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.model import Changes, Plan, Snapshot
from controller.policies.base import Policy
from controller.simulation.virtual_time import SAME_INSTANT_SECONDS


class InRounds:
    """Decorates a policy, for one cluster. Its memory is in the object: a simulation has no journal."""

    def __init__(
        self, policy: Policy, round_seconds: float, floor_seconds: float = 0.0, late_seconds: float = 0.0
    ) -> None:
        """`late_seconds`: who looks at a boundary has seen everything so much later."""
        self.name = policy.name
        self.reads_accrual = getattr(policy, "reads_accrual", False)
        self._policy = policy
        self._round_seconds = round_seconds
        self._late_seconds = late_seconds + SAME_INSTANT_SECONDS
        self._rounds_between = math.ceil((floor_seconds - SAME_INSTANT_SECONDS) / round_seconds)
        self._last = self._earliest = -math.inf
        """The round that began with the last decision, and the first one that may begin with another."""
        self.decided = False
        """Whether the policy was asked the last time."""
        self._goes_on = False
        """The last plan was but a part of what is to be decided."""
        self._plan = Plan({})
        self._missed: list[Changes | None] = []
        """What snapshots said that the policy has not seen."""

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """The policy's, or the last one once more."""
        now = snapshot.time
        if not self._goes_on:
            number = (now + SAME_INSTANT_SECONDS) // self._round_seconds
            too_soon = number < self._earliest and number != self._last
            if too_soon or now - number * self._round_seconds > self._late_seconds:
                self.decided = False
                self._missed.append(snapshot.changes)
                last, again = self._plan, self._moment(now, now)
                return Plan(last.assignments, last.reasons, state, again, changed=frozenset())
            if snapshot.jobs:  # (where there are none, nothing is decided)
                self._last, self._earliest = number, number + self._rounds_between
        if self._missed:
            snapshot = replace(snapshot, changes=_joined([*self._missed, snapshot.changes]))
            self._missed.clear()
        self.decided = True
        plan = self._policy.plan(snapshot, state)
        wake_at = plan.wake_at
        self._goes_on = wake_at is not None and wake_at <= now
        if wake_at is not None and not self._goes_on:
            moment = self._moment(wake_at, now)
            if moment != wake_at:
                plan = replace(plan, wake_at=moment)
        self._plan = plan
        return plan

    def _moment(self, time: float, now: float) -> float:
        """When what is due at `time` is decided about."""
        number = (time + SAME_INSTANT_SECONDS) // self._round_seconds
        if time - number * self._round_seconds > self._late_seconds:
            number += 1
        moment = max(number, self._earliest) * self._round_seconds
        return moment if moment > now else time


def _joined(parts: list[Changes | None]) -> Changes | None:
    """All that changed since before the first. None: one of them does not say."""
    told = [part for part in parts if part is not None]
    if len(told) < len(parts):
        return None
    jobs = frozenset().union(*(part.jobs for part in told))
    return Changes(told[0].since, jobs, frozenset().union(*(part.nodes for part in told)))
