# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that Slurm has as pending while their processes are on a node.

A slurmctld that is killed forgets the starts of its last moments. Releasing such a job once more would start
a second copy, which slurmd refuses ("Duplicate jobid"), and Slurm would drain the node. So it waits until
Slurm has found the first copy and ended it, which it does when the node registers anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.model import JobId
from controller.nodes.port import NodeSample
from controller.observe.node_cache import NodeCache


def surviving_processes(job_ids: Iterable[JobId], nodes: NodeCache) -> dict[JobId, str]:
    """Of these jobs those that have processes on a node, and on which."""
    found: dict[JobId, str] = {}
    for job_id in job_ids:
        for name in sorted(nodes.showing(job_id)):
            sample = nodes.samples[name]
            if isinstance(sample, NodeSample) and sample.living({job_id}):
                found.setdefault(job_id, name)
    return found
