# SPDX-License-Identifier: GPL-2.0-or-later
"""Users' shares, before any policy: it sees jobs with other weights, or in another order."""

from collections.abc import Mapping, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from controller.model import Job, JobId, Memory, Plan, Share, Snapshot
from controller.model.value import empty
from controller.policies.protocol import Policy
from controller.policies.share_tree import member_of


class Rule(Protocol):
    """What becomes of jobs by the shares of their users. Deterministic in what it was told since `reset`."""

    def figures(self, shares: Mapping[str, Share]) -> Mapping[str, object]:
        """What counts of the shares."""

    def reset(self, shares: Mapping[str, Share]) -> None:
        """Begin anew with these shares."""

    def follow(self, changed: Set[JobId], jobs: Mapping[JobId, Job]) -> set[JobId]:
        """These jobs came, went or changed. Returns them, and all that are to be seen otherwise now."""

    def seen(self, job: Job) -> Job:
        """The job as the policy sees it."""

    def words(self, job: Job) -> str:
        """What is added to a job's reason."""


class ByShares:
    """A policy that sees jobs as a rule makes them. What is kept between plans only saves work."""

    def __init__(self, policy: Policy, rule: Rule) -> None:
        self._policy, self._rule = policy, rule
        self._shares: Mapping[str, Share] = empty()
        self._figures: Mapping[str, object] = empty()
        self._jobs: dict[JobId, Job] = {}

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """The policy's plan, with the user's share in the reasons. Cost: jobs that changed or are seen
        otherwise, and the lanes that these are in."""
        changed = snapshot.changed
        if self._are_others(snapshot.shares) or changed.everything:
            self._rule.reset(snapshot.shares)
            ids: Set[JobId] = snapshot.jobs.keys() | self._jobs.keys()
        else:
            ids = changed.jobs
        otherwise: set[JobId] = set()
        for job_id in self._rule.follow(ids, snapshot.jobs):
            job = snapshot.jobs.get(job_id)
            if job is None:
                self._jobs.pop(job_id, None)
                continue
            seen = self._rule.seen(job)
            before = self._jobs.get(job_id)
            if before is not seen and before != seen:
                self._jobs[job_id] = seen
                otherwise.add(job_id)
        known = changed if changed.everything else replace(changed, jobs=changed.jobs | otherwise)
        plan = self._policy.plan(replace(snapshot, jobs=MappingProxyType(self._jobs), changed=known), memory)
        reasons = {
            job_id: why + self._rule.words(self._jobs[job_id]) if job_id in self._jobs else why
            for job_id, why in plan.reasons.items()
        }
        return replace(plan, reasons=reasons)

    def _are_others(self, shares: Mapping[str, Share]) -> bool:
        if shares is self._shares:
            return False
        before, self._shares, self._figures = self._figures, shares, self._rule.figures(shares)
        return before != self._figures


class InFactorOrder:
    """Within a class, users in the order of Slurm's fair-share factor; the policy's order is that of the jobs
    of users with the same factor."""

    def __init__(self) -> None:
        self._shares: Mapping[str, Share] = empty()

    def figures(self, shares: Mapping[str, Share]) -> Mapping[str, object]:
        return {name: share.fair_share for name, share in shares.items()}

    def reset(self, shares: Mapping[str, Share]) -> None:
        self._shares = shares

    def follow(self, changed: Set[JobId], jobs: Mapping[JobId, Job]) -> set[JobId]:
        return set(changed)

    def seen(self, job: Job) -> Job:
        return replace(job, share_rank=1.0 - self._factor(job))

    def words(self, job: Job) -> str:
        return f"; Slurm's fair-share factor of {job.user} is {self._factor(job):.2f}" if self._shares else ""

    def _factor(self, job: Job) -> float:
        """0, as Slurm's own, for a user that it does not name."""
        share = self._shares.get(member_of(job).name)
        return (share.fair_share or 0.0) if share is not None else 0.0
