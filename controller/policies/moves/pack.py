# SPDX-License-Identifier: GPL-2.0-or-later
"""Packing: two jobs that both allow it run on the same GPUs at the same time (SPEC 1.4).

A waiting job joins a running one, its host, when their gangs are equally large and the peaks of their memory,
both measured, fit together. The mechanism does not count guests: a guest leaves when its host does.
"""

from __future__ import annotations

from controller.model import NOWHERE, Job, JobId, Placement, Snapshot
from controller.policies.placement.draft import Draft


class Pack:
    """At most two jobs on a GPU."""

    name = "pack"

    def __init__(self, *, reserve_fraction: float = 0.1) -> None:
        """`reserve_fraction`: of a GPU's memory that stays free beside the two peaks."""
        self._reserve_fraction = reserve_fraction

    def propose(self, snapshot: Snapshot, draft: Draft) -> dict[JobId, str]:
        reasons = self._part(snapshot, draft)
        hosts = [
            job
            for job_id, placement in draft.placements.items()
            if placement.gpus
            and not placement.shares_with
            and (job := snapshot.jobs[job_id]).request.may_pack
            and job.placement.gpus == placement.gpus
        ]
        if not hosts:
            return reasons
        guests = [
            job
            for job in snapshot.jobs.values()
            if job.may_start and job.request.may_pack and not draft.of(job.id).gpus
        ]
        hosts.sort(key=_by_submission)
        for guest in sorted(guests, key=_by_submission):
            for host in hosts:
                if self._fit(snapshot, guest, host, draft):
                    gpus, allocation = draft.of(host.id).gpus, draft.of(host.id).allocation
                    draft.put(host.id, Placement(gpus, allocation, frozenset({guest.id})))
                    draft.put(guest.id, Placement(gpus, guest.allocation or gpus, frozenset({host.id})))
                    reasons[guest.id] = f"shares the GPUs of job {host.id}: their memory fits together"
                    hosts.remove(host)
                    break
        return reasons

    def _part(self, snapshot: Snapshot, draft: Draft) -> dict[JobId, str]:
        """A guest leaves its GPUs with its host; a host whose guest has left has them alone."""
        reasons: dict[JobId, str] = {}
        sharing = [(i, draft.of(i)) for i in sorted(draft.placements) if draft.of(i).shares_with]
        for job_id, placement in sharing:
            stay = frozenset(i for i in placement.shares_with if draft.of(i).gpus == placement.gpus)
            if stay == placement.shares_with:
                continue
            if stay or not placement.guest(job_id):
                draft.put(job_id, Placement(placement.gpus, placement.allocation, stay))
            elif snapshot.jobs[job_id].may_stop:
                draft.put(job_id, NOWHERE)
                reasons[job_id] = "stops: the job that it shared GPUs with has left them"
        return reasons

    def _fit(self, snapshot: Snapshot, guest: Job, host: Job, draft: Draft) -> bool:
        gpus = draft.of(host.id).gpus
        # The job with the lower id stands for both: it must be the one that the mechanism runs.
        if guest.id < host.id or len(gpus) != guest.gpus or guest.priority_class != host.priority_class:
            return False
        if guest.allocation and not gpus <= guest.allocation:
            return False
        cards = [snapshot.gpu(gpu) for gpu in gpus]
        types = guest.request.gpu_types
        if any(card is None or (types and card.model not in types) for card in cards):
            return False
        names = {gpu.node for gpu in gpus}
        if names & guest.excluded_nodes or (guest.required_nodes and not names <= guest.required_nodes):
            return False
        peaks = [snapshot.profile_of(job.id).peak_memory_bytes for job in (guest, host)]
        room = min(card.memory_bytes for card in cards if card is not None) * (1 - self._reserve_fraction)
        return min(peaks) > 0 and sum(peaks) <= room


def _by_submission(job: Job) -> tuple[int, float, JobId]:
    return (-job.priority_class, job.submit_time, job.id)
