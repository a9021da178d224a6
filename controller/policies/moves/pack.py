# SPDX-License-Identifier: GPL-2.0-or-later
"""Packing: a waiting job joins a running one, its host, on the same GPUs, where both may share them (SPEC
1.4). Jobs wait only where GPUs are short, so nothing is packed while there is room.

The mechanism does not count guests: a guest leaves when its host does.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping

from controller.model import GpuId, GpuSet, Job, JobId, Placement, Snapshot, by_node
from controller.policies.placement.draft import Draft
from controller.policies.placement.refusal import refusal
from controller.policies.placement.sharing import peak_bytes, refusal_to_share, room_bytes

_TRIES = 32
"""Hosts that are tried for a guest."""

_WHY = "both allow it, and their memory fits together"

_Host = tuple[int, JobId]
"""Memory that it leaves, negative: the most comes first; and its id."""


class Pack:
    """At most two jobs on a GPU."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        guests = [job for job in snapshot.jobs.values() if _may_join(snapshot, job, draft)]
        if not guests:
            return
        hosts: dict[int, list[_Host]] = {}
        for job_id, placement in draft.placements.items():
            job = snapshot.jobs[job_id]
            if placement.gpus and _may_host(snapshot, job, placement):
                left = room_bytes(snapshot, placement.gpus) - peak_bytes(snapshot, job)
                insort(hosts.setdefault(job.gpus, []), (-left, job_id))
        if not hosts:
            return
        bound = Counter(gpu for job in snapshot.jobs.values() for gpu in job.placement.allocation)
        for guest in sorted(guests, key=lambda job: (-job.priority_class, job.submit_time, job.id)):
            possible = hosts.get(guest.request.size.wanted, [])
            for host in possible[:_TRIES]:
                gpus = draft.of(host[1]).gpus
                if self._fits(snapshot, guest, host[1], gpus) and _can_bind(snapshot, guest, gpus, bound):
                    possible.remove(host)
                    self._join(guest, host[1], draft)
                    break

    def _fits(self, snapshot: Snapshot, guest: Job, host_id: JobId, gpus: GpuSet) -> bool:
        # The job with the lower id stands for both: it must be the one that the mechanism runs.
        if guest.id < host_id or refusal_to_share(snapshot, snapshot.jobs[host_id], guest, gpus):
            return False
        return all((card := snapshot.gpu(gpu)) is not None and card.usable for gpu in gpus)

    def _join(self, guest: Job, host_id: JobId, draft: Draft) -> None:
        host = draft.of(host_id)
        allocation = guest.placement.allocation or host.gpus
        draft.put(host_id, Placement(host.gpus, host.allocation, frozenset({guest.id})))
        draft.put(guest.id, Placement(host.gpus, allocation, frozenset({host_id})))
        draft.say(guest.id, f"joins job {host_id} on its GPUs: {_WHY}")
        draft.say(host_id, f"shares its GPUs with job {guest.id}: {_WHY}")


def _can_bind(snapshot: Snapshot, guest: Job, gpus: GpuSet, bound: Mapping[GpuId, int]) -> bool:
    """Whether the guest may use these GPUs. `bound`: how many jobs Slurm has bound to each."""
    if guest.placement.allocation:
        return gpus == guest.last or (guest.may_move and gpus <= guest.placement.allocation)
    by_name = by_node(gpus)
    if guest.request.nodes not in (None, len(by_name)):
        return False
    for name, ordinals in by_name.items():
        node, share = snapshot.nodes[name], len(ordinals)
        if refusal(guest, node, share, share, node.memory_free_bytes) is not None:
            return False
    cards = [snapshot.gpu(gpu) for gpu in gpus]
    return all(card is not None and bound[card.id] < card.shards for card in cards)


def _may_join(snapshot: Snapshot, job: Job, draft: Draft) -> bool:
    may = job.may_start and job.request.may_pack and not draft.of(job.id).gpus
    return bool(may) and peak_bytes(snapshot, job) > 0


def _may_host(snapshot: Snapshot, job: Job, placement: Placement) -> bool:
    """It is on these GPUs, alone, and stays there."""
    alone = not placement.shares_with and job.placement.gpus == placement.gpus
    return alone and bool(job.request.may_pack) and not job.switching and peak_bytes(snapshot, job) > 0
