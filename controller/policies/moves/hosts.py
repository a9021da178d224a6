# SPDX-License-Identifier: GPL-2.0-or-later
"""Running jobs that another one may join on their GPUs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from controller.model import Job, JobId, Placement, Snapshot, by_node, rate_key
from controller.policies.placement.draft import Draft
from controller.policies.placement.sharing import peak_bytes, room_bytes, utilization

_LOOKS = 50_000
"""Within one plan, hosts are looked at so often at most."""

_Entry = tuple[float, int, JobId]
"""Utilisation, what is left of the memory (negative), job."""


class Hosts:
    """Those first that use their GPUs least, then those that leave the most memory."""

    def __init__(self, snapshot: Snapshot, draft: Draft, guests: Sequence[Job]) -> None:
        """For these guests."""
        keys = {key for guest in guests for key in _keys(guest)}
        bound = any(guest.placement.allocation for guest in guests)
        self._lists: dict[object, list[_Entry]] = {}
        """By size of the gang and by node."""
        self._entries: dict[JobId, _Entry] = {}
        self._keys: dict[JobId, list[object]] = {}
        self._beyond: dict[object, float] = {}
        """Bytes that no host leaves, by key."""
        self._looks = _LOOKS
        for job_id, placement in draft.placements.items():
            if not placement.gpus or placement.shares_with:
                continue
            nodes = by_node(placement.gpus) if bound else ()
            own = [key for key in (len(placement.gpus), *nodes) if key in keys]
            job = snapshot.jobs[job_id]
            if own and _may_host(snapshot, job, placement):
                left = room_bytes(snapshot, placement.gpus) - peak_bytes(snapshot, job)
                self._entries[job_id], self._keys[job_id] = (utilization(snapshot, job), -left, job_id), own
                for key in own:
                    self._lists.setdefault(key, []).append(self._entries[job_id])
        for line in self._lists.values():
            line.sort()

    def __len__(self) -> int:
        return len(self._entries)

    def remove(self, job_id: JobId) -> None:
        entry = self._entries.pop(job_id)
        for key in self._keys.pop(job_id):
            line = self._lists[key]
            del line[bisect_left(line, entry)]

    def any_for(self, guest: Job) -> bool:
        """Whether there are hosts of its size; of a guest that is bound, on its own nodes."""
        return any(self._lists.get(key) for key in _keys(guest))

    def with_room(self, guest: Job, peak: int) -> Iterable[JobId]:
        """Hosts that leave so much memory; of a guest that is bound, on its own nodes. Not to be asked on
        after one of them was removed."""
        for key in _keys(guest):
            if peak >= self._beyond.get(key, math.inf):
                continue
            found = False
            for _, left, job_id in self._lists.get(key, ()):
                self._looks -= 1
                if self._looks < 0:
                    return
                if -left >= peak:
                    found = True
                    yield job_id
            if not found:
                self._beyond[key] = peak


def _keys(guest: Job) -> Iterable[object]:
    return by_node(guest.placement.allocation) or (guest.request.size.wanted,)


def _may_host(snapshot: Snapshot, job: Job, placement: Placement) -> bool:
    """It is on these GPUs, alone, and stays there."""
    stays = job.placement.gpus == placement.gpus and not job.switching
    measured = rate_key(job) in snapshot.rates
    return stays and measured and bool(job.request.may_pack) and peak_bytes(snapshot, job) > 0
