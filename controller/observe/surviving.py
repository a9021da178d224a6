# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that Slurm has as pending while their processes are on a node.

A slurmctld that is killed forgets the starts of its last moments. Releasing such a job once more would start
a second copy, which slurmd refuses ("Duplicate jobid"), and Slurm would drain the node. So it waits until
Slurm has found the first copy and ended it, which it does when the node registers anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.port import NodeSample


def lingering(job_ids: Set[JobId], samples: Mapping[str, NodeSample | NodeError]) -> dict[JobId, str]:
    """Of these jobs those that live on a node, and on which. Cost: O(nodes + their processes)."""
    found: dict[JobId, str] = {}
    if job_ids:
        for name, sample in samples.items():
            if isinstance(sample, NodeSample):
                for job_id in sample.living(job_ids):
                    found.setdefault(job_id, name)
    return found
