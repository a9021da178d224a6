# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go while they have their GPUs to themselves: what packing is measured against."""

from __future__ import annotations

from controller.model import Configuration, GpuSet, Job, JobId, Snapshot, gpu_type, rate_key


def alone_on(snapshot: Snapshot, gpus: GpuSet) -> Configuration:
    """That of a job which has these GPUs to itself."""
    return Configuration(gpu_type(gpus, snapshot.nodes), len(gpus), len({gpu.node for gpu in gpus}))


def rates_alone(snapshot: Snapshot, jobs: tuple[Job, ...], where: Configuration) -> dict[JobId, float]:
    """Samples/s of each job, or of others with its model, in this configuration. Empty: of one it is not
    known."""
    found: dict[JobId, float] = {}
    for job in jobs:
        rate = snapshot.rates.get(rate_key(job), {}).get(where)
        if rate is None or rate.samples_per_second <= 0:
            return {}
        found[job.id] = rate.samples_per_second
    return found
