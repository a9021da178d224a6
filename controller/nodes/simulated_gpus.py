# SPDX-License-Identifier: GPL-2.0-or-later
"""What simulated nodes say of their GPUs."""

from functools import lru_cache

from controller.model import JobId
from controller.nodes import protocol

_MEMORY_BYTES = 80 * 2**30
_JOB_MEMORY_BYTES = 2**30


@lru_cache(maxsize=1 << 16)
def gpu_sample(node: str, ordinal: int, model: str, holders: tuple[JobId, ...]) -> protocol.GpuSample:
    """A GPU with these jobs on it."""
    return protocol.GpuSample(
        index=ordinal,
        uuid=f"GPU-{node}-{ordinal}",
        model=model,
        memory_bytes=_MEMORY_BYTES,
        memory_used_bytes=_JOB_MEMORY_BYTES * len(holders),
        utilization_fraction=1.0 if holders else 0.0,
        healthy=True,
        processes=tuple(
            protocol.GpuProcess(1000 + job_id, job_id, 2001, _JOB_MEMORY_BYTES) for job_id in holders
        ),
    )
