# SPDX-License-Identifier: GPL-2.0-or-later
"""Exact placement of a gang on free GPUs, shared by the policies."""

from collections.abc import Sequence

from controller.model import Job
from controller.policies.placement.servers import Server, pick_ordinals


def node_counts(job: Job, servers: int, largest: int) -> list[int]:
    """Over how many of so many nodes (the largest with so many GPUs) the gang may be spread evenly, fewest
    first. Empty: it can never run here."""
    if job.request.nodes is not None:
        return [job.request.nodes] if job.gpus % job.request.nodes == 0 else []
    return [k for k in range(1, min(servers, job.gpus) + 1) if job.gpus % k == 0 and job.gpus // k <= largest]


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
