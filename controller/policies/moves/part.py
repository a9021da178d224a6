# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that share GPUs are separated where they may not, or where the mechanism took one of them away.

Follows every mechanism, whatever moves are configured. Of two jobs the one with the higher id, the guest,
leaves: the mechanism counts the other one only.
"""

from collections.abc import Iterable

from controller.model import Job, JobId, Placement, Reason, Snapshot, Why
from controller.policies.placement.draft import Draft
from controller.policies.placement.sharing import refusal_to_share


def part(snapshot: Snapshot, draft: Draft, sharing: Iterable[JobId]) -> None:
    """Of these jobs, which were seen on GPUs together."""
    for job_id in sorted(sharing):
        if draft.of(job_id).guest(job_id) and snapshot.jobs[job_id].may_stop:
            why = _why_apart(snapshot, draft, snapshot.jobs[job_id])
            if why:
                draft.put(job_id, Placement(frozenset(), draft.of(job_id).allocation))
                draft.say(job_id, why)
    for job_id in sorted(sharing):
        placement = draft.of(job_id)
        stay = frozenset(i for i in placement.shares_with if draft.of(i).gpus & placement.gpus)
        if placement.gpus and stay != placement.shares_with:
            draft.put(job_id, Placement(placement.gpus, placement.allocation, stay))


def with_partners(snapshot: Snapshot, ids: Iterable[JobId]) -> set[JobId]:
    """These and those that share GPUs with them: what may be done with one depends on the other."""
    jobs, found = snapshot.jobs, set(ids)
    beside = [job.placement.shares_with for i in found if (job := jobs.get(i)) is not None]
    return found.union(*(others & jobs.keys() for others in beside if others))


def _why_apart(snapshot: Snapshot, draft: Draft, guest: Job) -> Why | None:
    """Why the guest has to leave; None where it may stay."""
    placement = draft.of(guest.id)
    host_id = min(placement.shares_with)
    host, there = snapshot.jobs.get(host_id), draft.of(host_id).gpus & placement.gpus
    if there and draft.of(host_id).gpus != placement.gpus:
        return Why(Reason.SHARES_GPUS, f"stops: job {host_id} is on some of its GPUs")
    if host is None or not there:
        words = f"stops with job {host_id}, which it shared GPUs with: others come before that one"
        return Why(Reason.PREEMPTED, words)
    if len(placement.shares_with) > 1:
        return Why(Reason.SHARES_GPUS, "stops: no more than two jobs share a GPU")
    why = refusal_to_share(snapshot, host, guest, placement.gpus)
    return Why(Reason.SHARES_GPUS, f"stops sharing GPUs with job {host_id}: {why}") if why else None
