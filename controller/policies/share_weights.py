# SPDX-License-Identifier: GPL-2.0-or-later
"""Weights by shares: twelve jobs of one user have together the weight that one job of another has.

In each lane users have parts by their shares, and a user's jobs divide the user's part by their weights:

    effective weight = weights in the lane * the user's part * weight / weights of the user in the lane

So the weights of a node stay what they are in all, and those of a user who is alone there do not change. In
the cluster the number of users stands in place of all weights: a job that comes changes the weights of its
user only.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import replace

from controller.model import Job, JobId, Share
from controller.model.value import empty, value
from controller.policies.share_tree import Member, fractions, member_of

FIRST = -1.0
"""`Job.share_rank` of the first waiting job of a user who has no job on a node."""
_CLUSTER = ""
"""The one lane of a policy whose jobs compete in the whole cluster."""
_LEAST_FACTOR = 1e-3
_DIGITS = 9
"""Of a weight: sums in another order differ behind these."""


@value
class _Part:
    """What a user has of a lane."""

    each: float
    """Of the lane for a weight of 1."""
    factor: float
    """Effective weight of the user's jobs by their own."""
    fraction: float
    jobs: int
    members: int
    """Users in the lane."""


class DividedWeights:
    """The rule. A lane is a node, with the jobs that are bound to it, or the cluster."""

    def __init__(self, *, by_node: bool) -> None:
        self._by_node = by_node
        self.reset(empty())

    def figures(self, shares: Mapping[str, Share]) -> Mapping[str, object]:
        return {name: (share.parent, share.weight) for name, share in shares.items()}

    def reset(self, shares: Mapping[str, Share]) -> None:
        self._shares = shares
        self._places: dict[JobId, tuple[Member, tuple[str, ...]]] = {}
        self._lanes: dict[str, dict[Member, dict[JobId, float]]] = {}
        """Weights of the jobs of each user, by lane."""
        self._parts: dict[str, dict[Member, _Part]] = {}
        self._waiting: dict[Member, dict[JobId, float]] = {}
        """When they were submitted: jobs that could start and have no place."""
        self._bound: dict[Member, int] = {}
        """How many jobs of a user are in lanes."""
        self._first: dict[Member, JobId] = {}

    def follow(self, changed: Set[JobId], jobs: Mapping[JobId, Job]) -> set[JobId]:
        places = [self._places[job_id] for job_id in changed if job_id in self._places]
        for job_id in changed:
            self._leave(job_id)
            if job_id in jobs:
                self._enter(jobs[job_id])
                places.append(self._places[job_id])
        affected = set(changed)
        for lane in {lane for _, lanes in places for lane in lanes}:
            affected |= self._divide(lane)
        for member in {member for member, _ in places} if self._by_node else ():
            affected |= self._choose_first(member)
        return affected

    def seen(self, job: Job) -> Job:
        if self._first.get(member_of(job)) == job.id:
            return replace(job, share_rank=FIRST)
        part = self._part(job)
        if part is None:
            return job
        weight = round(job.request.weight * part.factor, _DIGITS)
        if weight == job.request.weight:
            return job
        return replace(job, request=replace(job.request, weight=weight))

    def words(self, job: Job) -> str:
        part = self._part(job)
        if part is None or part.members == 1:
            return ""
        jobs = "one job" if part.jobs == 1 else f"{part.jobs} jobs"
        where = "there" if self._by_node else "of the cluster"
        return f"; {job.user}'s share {where} is {part.fraction:.0%}, for {jobs}"

    def _part(self, job: Job) -> _Part | None:
        """Of a gang over several nodes, the least that its user has on one of them."""
        member, lanes = self._places.get(job.id, (member_of(job), ()))
        parts = [self._parts[lane][member] for lane in lanes]
        return min(parts, key=lambda part: part.each, default=None)

    # -- who is where ---------------------------------------------------------------------------------

    def _lanes_of(self, job: Job) -> tuple[str, ...]:
        if self._by_node:
            return tuple(sorted({gpu.node for gpu in job.allocation}))
        return (_CLUSTER,) if job.allocation or job.may_start else ()

    def _enter(self, job: Job) -> None:
        member, lanes = member_of(job), self._lanes_of(job)
        self._places[job.id] = (member, lanes)
        for lane in lanes:
            self._lanes.setdefault(lane, {}).setdefault(member, {})[job.id] = job.request.weight
        if lanes:
            self._bound[member] = self._bound.get(member, 0) + 1
        elif job.may_start:
            self._waiting.setdefault(member, {})[job.id] = job.submit_time

    def _leave(self, job_id: JobId) -> None:
        if job_id not in self._places:
            return
        member, lanes = self._places.pop(job_id)
        for lane in lanes:
            weights = self._lanes[lane]
            del weights[member][job_id]
            if not weights[member]:
                del weights[member]
        if lanes:
            self._bound[member] -= 1
        else:
            self._waiting.get(member, {}).pop(job_id, None)

    # -- what follows from it -------------------------------------------------------------------------

    def _divide(self, lane: str) -> set[JobId]:
        """Who has what of the lane; jobs of which that is something else than before."""
        weights = self._lanes[lane]
        before = self._parts.pop(lane, {})
        if not weights:
            del self._lanes[lane]
            return set()
        sums = {member: math.fsum(jobs.values()) for member, jobs in weights.items()}
        due = fractions(self._shares, weights)
        total = math.fsum(sums.values()) if self._by_node else len(weights)
        parts = self._parts[lane] = {}
        for member, jobs in weights.items():
            each = due[member] / sums[member]
            parts[member] = _Part(
                each, max(_LEAST_FACTOR, total * each), due[member], len(jobs), len(weights)
            )
        other = [member for member in weights if parts[member] != before.get(member)]
        return {job_id for member in other for job_id in weights[member]}

    def _choose_first(self, member: Member) -> set[JobId]:
        """The job that brings a user without a place to a node: jobs of which that is news."""
        waiting = self._waiting.get(member, {})
        before = self._first.pop(member, None)
        if waiting and not self._bound.get(member):
            self._first[member] = min(waiting, key=lambda job_id: (waiting[job_id], job_id))
        now = self._first.get(member)
        return {job_id for job_id in (before, now) if job_id is not None and before != now}
