# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go where: the one table that packing, its undo, growing and allocations read."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from controller.model.cluster import GpuSet, JobId, Node, gpu_type
from controller.model.job import Job
from controller.model.value import value

_ONE_JOB = "job:"
"""Names of models have no colon."""


def rate_key(job: Job) -> str:
    """Under which name rates of this job are kept: its model, or the job itself where it names none."""
    return job.request.model or key_of_job(job.id)


def key_of_job(job_id: JobId) -> str:
    """The name for a job without a model."""
    return f"{_ONE_JOB}{job_id}"


def of_one_job(key: str) -> bool:
    """Whether that is the name of a job without a model."""
    return key.startswith(_ONE_JOB)


@value
class Configuration:
    """The key of every throughput."""

    gpu_type: str
    gpus: int
    nodes: int = 1
    models_beside: tuple[str, ...] = ()
    """What `rate_key` says of the jobs on the same GPUs, sorted."""

    @classmethod
    def of(cls, gpus: GpuSet, nodes: Mapping[str, Node], beside: Iterable[Job] = ()) -> Configuration:
        """That of a job on these GPUs, beside these jobs."""
        models = tuple(sorted(map(rate_key, beside)))
        return cls(gpu_type(gpus, nodes), len(gpus), len({gpu.node for gpu in gpus}), models)


class Provenance(str, enum.Enum):
    """Where a rate comes from."""

    MEASURED = "measured"
    DECLARED = "declared"
    ESTIMATED = "estimated"


@value
class Rate:
    """Samples per second in one configuration."""

    samples_per_second: float
    window_seconds: float = 0.0
    """How long it was measured."""
    measured_at: float = 0.0
    provenance: Provenance = Provenance.MEASURED
    mini_batches: int = 0
    """How many were seen in the window; 0 where it was not measured."""


@value(kw_only=True)
class Costs:
    """What operations on jobs of one model take, each the median of the last ones. None: not measured yet."""

    suspend_seconds: float | None = None
    """Off the GPUs, to host memory, up to when they are free."""
    restore_seconds: float | None = None
    """Back onto GPUs from host memory."""
    checkpoint_seconds: float | None = None
    """A requeue: from its begin to when the job is in the queue again."""
    save_seconds: float | None = None
    """Into the checkpoint store, from the GPUs or from host memory."""
    start_seconds: float | None = None
    """From when its GPUs are its own to when it runs on them."""
    load_seconds: float | None = None
    """From when it runs on its GPUs after a start to its first mini-batch there."""


UNMEASURED = Costs()
