# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that a move can give to a job."""

from __future__ import annotations

from collections import Counter

from controller.model import GpuId, Snapshot
from controller.policies.placement.draft import Draft


def free_gpus(snapshot: Snapshot, draft: Draft) -> dict[str, list[GpuId]]:
    """Usable GPUs that no job has, or is bound to, as the draft has them; by node, of those that are
    available."""
    taken = {gpu for placement in draft.placements.values() for gpu in placement.gpus | placement.allocation}
    bound = Counter(gpu for job in snapshot.jobs.values() for gpu in job.placement.allocation)
    return {
        name: [
            gpu.id for gpu in node.gpus if gpu.usable and gpu.id not in taken and bound[gpu.id] < gpu.shards
        ]
        for name, node in snapshot.nodes.items()
        if node.available
    }
