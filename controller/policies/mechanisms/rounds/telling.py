# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps what `gandiva explain` says of jobs in rounds up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from controller.model import JobId, Target
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.rounds import words
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.row import ASIDE, WAITING

_AT_ONCE = 2000
"""With one plan it says why so many jobs are where they are; more where the plan starts or stops more."""


class Telling:
    """Why jobs are where they are, or are to be."""

    def __init__(self, pools: Pools, members: Mapping[JobId, Member], *, pairs: bool) -> None:
        """
        Args:
            members: all jobs; it follows what is observed.
            pairs: jobs that share GPUs do so because a round has chosen them together.
        """
        self._pools, self._members, self._pairs = pools, members, pairs
        self._unsaid: dict[JobId, None] = {}
        """Jobs of which something else may be true than what was said last."""
        self._off_gpus: set[JobId] = set()
        """Jobs whose last reason is one of a job off its GPUs."""

    @property
    def behind(self) -> bool:
        """There is more to say."""
        return bool(self._unsaid)

    def forget(self, job_id: JobId) -> None:
        """It is gone."""
        self._off_gpus.discard(job_id)
        self._unsaid.pop(job_id, None)

    def tell(self, changed: Iterable[JobId], targets: Mapping[JobId, Target]) -> dict[JobId, str]:
        """What is to be said with this plan. `changed`: something else may be true of these."""
        self._unsaid.update(dict.fromkeys(changed))
        more = max(0, _AT_ONCE - len(targets))
        said_now = [*targets, *islice((i for i in self._unsaid if i not in targets), more)]
        found: dict[JobId, str] = {}
        for job_id in said_now:
            self._unsaid.pop(job_id, None)
            member = self._members.get(job_id)
            if member is not None and (said := self._explain(member, targets.get(job_id))):
                found[job_id] = said
        return found

    def _explain(self, member: Member, target: Target | None) -> str:
        job = member.job
        if target is not None and target.placement.gpus:
            self._off_gpus.discard(job.id)
            if not job.placement.gpus:
                return words.starts(member)
            shares = self._pairs and target.placement.shares_with != job.placement.shares_with
            return words.shares(member) if shares else ""
        if target is not None:
            self._off_gpus.add(job.id)
            return words.stops(member)
        if member.standing is WAITING:
            self._off_gpus.add(job.id)
            return words.waits(member, "" if member.types else self._pools.why_nowhere(job))
        if job.switching or job.leaving:
            return ""
        if member.standing is ASIDE:
            self._off_gpus.add(job.id)
            return sentences.aside(job)
        if job.id in self._off_gpus:
            self._off_gpus.discard(job.id)
            return sentences.still_on(job)
        return ""
