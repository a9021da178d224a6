# SPDX-License-Identifier: GPL-2.0-or-later
"""Ordinary jobs of a simulated cluster: it does not report them, only that their GPUs are taken."""

from controller.model import JobId
from tests.contract.troubled import TroubledCluster

FIRST_ID = 900_000


def submit_ordinary(cluster: TroubledCluster, node: str, gpus: int) -> JobId:
    """One on the first whole GPUs of the node that no other has."""
    held = dict(cluster.nodes[node].ordinary_gpus)
    free = [card.index for card in cluster.nodes[node].gpus if card.index not in held]
    job_id = JobId(FIRST_ID + len(held))
    cluster.set_node(node, ordinary_gpus={**held, **dict.fromkeys(free[:gpus], job_id)})
    return job_id
