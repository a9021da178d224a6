# SPDX-License-Identifier: GPL-2.0-or-later
"""Exact placement of a gang on free GPUs, shared by the policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.model import GpuSet, Job
from controller.policies.servers import Server, candidates, exact_binding, pick_ordinals


def node_counts(job: Job, servers: Mapping[str, Server]) -> list[int]:
    """Over how many nodes the gang may be spread evenly, fewest first. Empty: it can never run here."""
    if job.request.nodes is not None:
        return [job.request.nodes] if job.request.gpus % job.request.nodes == 0 else []
    largest = max((len(s.node.gpus) for s in servers.values()), default=0)
    return [k for k in range(1, len(servers) + 1) if job.gpus % k == 0 and job.gpus // k <= largest]


def first_fit(job: Job, servers: Mapping[str, Server]) -> GpuSet | None:
    """Free GPUs for the whole gang on the fewest nodes, the fullest servers first; counts the job in.

    The same ordinals on every node, since Slurm's GRES are asked for per node.
    """
    for count in node_counts(job, servers):
        share = job.gpus // count
        fitting = sorted(
            (s for s in candidates(job, servers, share) if s.free >= share), key=lambda s: s.free
        )
        chosen = common_ordinals(fitting, count, share)
        if chosen is None:
            continue
        group, ordinals = chosen
        for server in group:
            server.assign(job.id, share, ordinals, job.memory_per_node_bytes)
        return exact_binding([s.node.name for s in group], ordinals)
    return None


def common_ordinals(
    fitting: Sequence[Server], count: int, share: int
) -> tuple[list[Server], list[int]] | None:
    """The first `count` of these servers that have `share` free ordinals in common, and these ordinals.

    Greedy: each server joins the group when enough common ordinals remain. For whole servers, the usual
    case, this is exact.
    """
    for first in range(len(fitting)):
        group = [fitting[first]]
        common = fitting[first].free_ordinals()
        if len(common) < share:
            continue
        for server in fitting[first + 1 :]:
            if len(group) == count:
                break
            theirs = set(server.free_ordinals())
            both = [o for o in common if o in theirs]
            if len(both) >= share:
                group.append(server)
                common = both
        if len(group) == count:
            return group, pick_ordinals(common, share)
    return None
