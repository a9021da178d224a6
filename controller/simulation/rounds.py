# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that decides in rounds: only at multiples of a time, and (where there is a floor) not sooner than
so long after it decided last.

Between these moments jobs stay as they are. What is asked for meanwhile, by the end of an operation or by a
timer of the policy, is decided about at the next one.
"""

import math
from dataclasses import replace

from controller.model import Changes, JobId, Memory, Plan, Snapshot, Usage
from controller.policies.protocol import Policy
from controller.simulation.virtual_time import SAME_INSTANT_SECONDS


class InRounds:
    """Decorates a policy, for one cluster."""

    def __init__(
        self, policy: Policy, round_seconds: float, floor_seconds: float = 0.0, late_seconds: float = 0.0
    ) -> None:
        """`late_seconds`: a look at a boundary has seen everything so much later."""
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
        self._missed: list[Changes] = []
        """What snapshots said that the policy has not seen."""
        self._gone: dict[JobId, Usage] = {}
        """Of jobs that went meanwhile."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        now = snapshot.time
        if not self._goes_on:
            number = (now + SAME_INSTANT_SECONDS) // self._round_seconds
            too_soon = number < self._earliest and number != self._last
            if too_soon or now - number * self._round_seconds > self._late_seconds:
                self.decided = False
                self._missed.append(snapshot.changed)
                gone = snapshot.usage.keys() - snapshot.jobs.keys()
                self._gone.update({job_id: snapshot.usage[job_id] for job_id in gone})
                return Plan({}, wake_at=self._moment(now, now))
            if snapshot.jobs:  # Without jobs nothing is decided.
                self._last, self._earliest = number, number + self._rounds_between
        if self._missed:
            seen = [*self._missed, snapshot.changed]
            kinds = ("jobs", "nodes", "solutions")
            sets = {kind: frozenset().union(*(getattr(each, kind) for each in seen)) for kind in kinds}
            changed = Changes(**sets, everything=any(each.everything for each in seen))
            snapshot = replace(snapshot, changed=changed, usage={**self._gone, **snapshot.usage})
            self._missed, self._gone = [], {}
        self.decided = True
        plan = self._policy.plan(snapshot, memory)
        # What it states is solved at once, and decided about in the same round.
        self._goes_on = plan.wake_at <= now or bool(plan.problems)
        if math.isfinite(plan.wake_at) and not self._goes_on:
            plan = replace(plan, wake_at=self._moment(plan.wake_at, now))
        return plan

    def _moment(self, time: float, now: float) -> float:
        """When what is due at `time` is decided about."""
        number = (time + SAME_INSTANT_SECONDS) // self._round_seconds
        if time - number * self._round_seconds > self._late_seconds:
            number += 1
        moment = max(number, self._earliest) * self._round_seconds
        return moment if moment > now else time
