# SPDX-License-Identifier: GPL-2.0-or-later
"""Running jobs that another one may join on their GPUs."""

import math
from collections.abc import Callable, Iterable

from controller.model import GpuId, Job, JobId, Placement, Snapshot, by_node, rate_key
from controller.policies import budget
from controller.policies.placement.draft import Draft
from controller.policies.placement.sharing import peak_bytes, room_bytes, utilization

_LOOKS = 50_000
"""Within one plan, hosts are looked at so often at most."""


_Entry = tuple[float, int, JobId]
"""Utilisation, what is left of the memory (negative), job."""


class Hosts:
    """Those first that use their GPUs least, then those that leave the most memory. Hosts of open trials wait
    for their guests, and are found by their ids alone."""

    def __init__(
        self, snapshot: Snapshot, draft: Draft, on_trial: Callable[[JobId], bool], begin: JobId
    ) -> None:
        """`on_trial`: whether a job is part of an open trial. `begin`: the first of the running jobs that are
        looked at."""
        self._lists: dict[object, list[_Entry]] = {}
        """By size of the gang and by node."""
        self.ids: set[JobId] = set()
        self._beyond: dict[object, float] = {}
        """Bytes that no host leaves, by key."""
        self._looks = _LOOKS
        self.gpus: set[GpuId] = set()
        """All GPUs of nodes with hosts."""
        alone = [
            i for i, each in draft.placements.items() if i >= begin and each.gpus and not each.shares_with
        ]
        alone.sort()
        self.next = alone[budget.SEEN] if len(alone) > budget.SEEN else None
        """The first one that was not looked at: the next plan, asked for at once, goes on with it. None: all
        were."""
        for job_id in alone[: budget.SEEN]:
            job, placement = snapshot.jobs[job_id], draft.of(job_id)
            if _may_host(snapshot, job, placement):
                names = {gpu.node for gpu in placement.gpus}
                self.ids.add(job_id)
                self.gpus.update(gpu.id for name in names for gpu in snapshot.nodes[name].gpus)
                left = room_bytes(snapshot, placement.gpus) - peak_bytes(snapshot, job)
                for key in () if on_trial(job_id) else (len(placement.gpus), *names):
                    line = self._lists.setdefault(key, [])
                    line.append((utilization(snapshot, job), -left, job_id))
        for line in self._lists.values():
            line.sort()

    def any_for(self, guest: Job) -> bool:
        """Whether there were hosts of its size; of a guest that is bound, on its own nodes."""
        lists = self._lists
        if not guest.placement.allocation:
            return bool(lists.get(guest.request.size.wanted))
        return not self.gpus.isdisjoint(guest.placement.allocation)

    def with_room(self, guest: Job, peak: int) -> Iterable[JobId]:
        """Hosts that leave so much memory; of a guest that is bound, on its own nodes."""
        for key in by_node(guest.placement.allocation) or (guest.request.size.wanted,):
            if peak >= self._beyond.get(key, math.inf):
                continue
            found = False
            for _, left, job_id in self._lists.get(key, ()):
                self._looks -= 1
                if self._looks < 0:
                    return
                if -left >= peak and job_id in self.ids:
                    found = True
                    yield job_id
            if not found:
                self._beyond[key] = peak


def _may_host(snapshot: Snapshot, job: Job, placement: Placement) -> bool:
    """It is on these GPUs, alone, and stays there."""
    stays = job.placement.gpus == placement.gpus and not job.switching
    measured = rate_key(job) in snapshot.rates
    return stays and measured and bool(job.request.may_pack) and peak_bytes(snapshot, job) > 0
