# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that a move can give to a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from itertools import chain, islice

from controller.model import GpuId, Job, Snapshot, gpu_type
from controller.policies.moves.drawers import Drawers
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts

_LOOKS = 256
"""Servers that are looked at for a job that could have GPUs of its own."""


def free_gpus(snapshot: Snapshot, draft: Draft, names: Iterable[str] | None = None) -> dict[str, list[GpuId]]:
    """By node, in order: usable GPUs that no job has, or waits for, as the draft has them: of the GPUs that a
    floating job is bound to those that it is on, and all of them while it is on none. `names`: of the nodes
    that are looked at; None: all. Those that are not available have none."""
    taken = set[GpuId]().union(*(each.gpus or each.allocation for each in draft.placements.values()))
    wanted = (snapshot.nodes[name] for name in (snapshot.nodes if names is None else names))
    free = {
        node.name: [gpu for gpu in node.gpus if gpu.usable and gpu.id not in taken]
        for node in wanted
        if node.available
    }
    bound = bindings(snapshot) if any(free.values()) else Counter[GpuId]()
    return {name: [gpu.id for gpu in gpus if bound[gpu.id] < gpu.shards] for name, gpus in free.items()}


def bindings(snapshot: Snapshot, among: Set[GpuId] | None = None) -> Counter[GpuId]:
    """How many jobs Slurm has bound to each GPU. `among`: of these GPUs; None: of all."""
    allocations = (job.placement.allocation for job in snapshot.jobs.values())
    if among is not None:
        allocations = (gpus for gpus in allocations if not among.isdisjoint(gpus))
    return Counter(chain.from_iterable(allocations))


def tightest(snapshot: Snapshot, job: Job, free: Drawers) -> str | None:
    """The node with the fewest free GPUs that takes the job, with the type of those it is or was on."""
    here = gpu_type(job.placement.gpus or job.last, snapshot.nodes)
    for name in islice(free.fitting(job.gpus), _LOOKS):
        same = gpu_type(frozenset(free.of(name)), snapshot.nodes) == here
        if same and accepts(snapshot.nodes[name], job, job.gpus):
            return name
    return None
