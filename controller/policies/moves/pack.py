# SPDX-License-Identifier: GPL-2.0-or-later
"""Packing: a waiting job joins a running one, its host, on the same GPUs, where both may share them (SPEC
1.4). Jobs wait only where GPUs are short, so nothing is packed while there is room.

The mechanism does not count guests: a guest leaves when its host does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping

from controller.model import GpuId, GpuSet, Job, JobId, Placement, Snapshot, by_node
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts
from controller.policies.placement.sharing import peak_bytes, refusal_to_share, room_bytes

_TRIES = 8
"""Hosts that are tried for a guest, or on each of its nodes."""

_WHY = "both allow it, and their memory fits together"


class Pack:
    """At most two jobs on a GPU."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        guests = [job for job in snapshot.jobs.values() if _may_join(snapshot, job, draft)]
        hosts = _Hosts(snapshot, draft) if guests else None
        if not hosts:
            return
        bound = Counter(gpu for job in snapshot.jobs.values() for gpu in job.placement.allocation)
        for guest in sorted(guests, key=lambda job: (-job.priority_class, job.submit_time, job.id)):
            for host_id in hosts.with_room(guest, peak_bytes(snapshot, guest)):
                host, gpus = snapshot.jobs[host_id], draft.of(host_id).gpus
                # The job with the lower id stands for both: it must be the one that the mechanism runs.
                may_share = host_id < guest.id and not refusal_to_share(snapshot, host, guest, gpus)
                if may_share and _can_bind(snapshot, guest, gpus, bound):
                    hosts.remove(host_id)
                    self._join(guest, host_id, draft)
                    break

    def _join(self, guest: Job, host_id: JobId, draft: Draft) -> None:
        host = draft.of(host_id)
        allocation = guest.placement.allocation or host.gpus
        draft.put(host_id, Placement(host.gpus, host.allocation, frozenset({guest.id})))
        draft.put(guest.id, Placement(host.gpus, allocation, frozenset({host_id})))
        draft.say(guest.id, f"joins job {host_id} on its GPUs: {_WHY}")
        draft.say(host_id, f"shares its GPUs with job {guest.id}: {_WHY}")


class _Hosts:
    """Running jobs that a guest may join, those first that leave the most memory."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._left: dict[JobId, int] = {}
        """Bytes on each GPU."""
        self._keys: dict[JobId, tuple[object, ...]] = {}
        self._lists: dict[object, list[tuple[int, JobId]]] = {}
        """(What is left, negative; job), by size of the gang and by node."""
        for job_id, placement in draft.placements.items():
            job = snapshot.jobs[job_id]
            if placement.gpus and _may_host(snapshot, job, placement):
                self._left[job_id] = room_bytes(snapshot, placement.gpus) - peak_bytes(snapshot, job)
                self._keys[job_id] = (job.gpus, *by_node(placement.gpus))
                for key in self._keys[job_id]:
                    insort(self._lists.setdefault(key, []), (-self._left[job_id], job_id))

    def __len__(self) -> int:
        return len(self._left)

    def remove(self, job_id: JobId) -> None:
        entry = (-self._left.pop(job_id), job_id)
        for key in self._keys.pop(job_id):
            line = self._lists[key]
            del line[bisect_left(line, entry)]

    def with_room(self, guest: Job, peak: int) -> Iterable[JobId]:
        """Hosts that leave so much memory; of a guest that is bound, on its own nodes."""
        for key in by_node(guest.placement.allocation) or (guest.request.size.wanted,):
            for negative, job_id in self._lists.get(key, ())[:_TRIES]:
                if -negative >= peak:
                    yield job_id


def _can_bind(snapshot: Snapshot, guest: Job, gpus: GpuSet, bound: Mapping[GpuId, int]) -> bool:
    """Whether the guest may use these GPUs. `bound`: how many jobs Slurm has bound to each."""
    cards = [snapshot.gpu(gpu) for gpu in gpus]
    if not all(card is not None and card.usable for card in cards):
        return False
    if guest.placement.allocation:
        return gpus == guest.last or (guest.may_move and gpus <= guest.placement.allocation)
    nodes = by_node(gpus)
    if guest.request.nodes not in (None, len(nodes)):
        return False
    if not all(accepts(snapshot.nodes[name], guest, len(ordinals)) for name, ordinals in nodes.items()):
        return False
    return all(card is not None and bound[card.id] < card.shards for card in cards)


def _may_join(snapshot: Snapshot, job: Job, draft: Draft) -> bool:
    may = job.may_start and job.request.may_pack and not draft.of(job.id).gpus
    return bool(may) and peak_bytes(snapshot, job) > 0


def _may_host(snapshot: Snapshot, job: Job, placement: Placement) -> bool:
    """It is on these GPUs, alone, and stays there."""
    alone = not placement.shares_with and job.placement.gpus == placement.gpus
    return alone and bool(job.request.may_pack) and not job.switching and peak_bytes(snapshot, job) > 0
