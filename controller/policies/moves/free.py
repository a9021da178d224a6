# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that no job has, as a draft has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from controller.model import GpuId, Snapshot
from controller.policies.placement.draft import Draft


def free_gpus(snapshot: Snapshot, draft: Draft, names: Iterable[str] | None = None) -> dict[str, list[GpuId]]:
    """By node, in order: those that no job uses, is bound to or is promised, and that Slurm can bind to one
    more. `names`: of the nodes that are looked at; None: all."""
    wanted = [snapshot.nodes[name] for name in (snapshot.nodes if names is None else names)]
    nodes = {node.name: node for node in wanted if node.available}
    taken = {
        gpu
        for placement in draft.placements.values()
        for gpu in placement.gpus | placement.allocation
        if gpu.node in nodes
    }
    bound = Counter(
        gpu for job in snapshot.jobs.values() for gpu in job.placement.allocation if gpu.node in nodes
    )
    return {
        name: [
            gpu.id for gpu in node.gpus if gpu.usable and gpu.id not in taken and bound[gpu.id] < gpu.shards
        ]
        for name, node in nodes.items()
    }
