# SPDX-License-Identifier: GPL-2.0-or-later
"""What the beginning of a round has laid out, until a plan says it."""

from collections.abc import Mapping

from controller.model import NOWHERE, GpuId, JobId, Placement
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.row import Standing
from controller.policies.placement.draft import Draft


class PendingLayout:
    """Placements that jobs are to have. The draft has them; jobs may change before they are said."""

    def __init__(self, changes: Mapping[JobId, Placement], members: Mapping[JobId, Member]) -> None:
        """`members`: all jobs; it follows what is observed."""
        self._changes, self._members = dict(changes), members
        self._seen = {job_id: self._state(job_id) for job_id in changes}

    def _state(self, job_id: JobId) -> tuple[Standing, Placement] | None:
        member = self._members.get(job_id)
        return None if member is None else (member.standing, member.job.placement)

    def say(self, draft: Draft) -> dict[JobId, Placement]:
        """Those that still hold, which the draft has then. A job that is otherwise now keeps what it has, and
        no other job is to have that."""
        changed = {job_id for job_id, state in self._seen.items() if self._state(job_id) != state}
        kept = set[GpuId]()
        for job_id in changed & self._members.keys():
            kept |= self._members[job_id].job.placement.gpus
        found: dict[JobId, Placement] = {}
        for job_id, placement in self._changes.items():
            if job_id in changed:
                continue
            if changed.isdisjoint(placement.shares_with) and kept.isdisjoint(placement.gpus):
                draft.put(job_id, placement)
                found[job_id] = placement
            elif not self._members[job_id].job.placement.gpus:
                draft.put(job_id, NOWHERE)
        return found
