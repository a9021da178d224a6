# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory that jobs leave on GPUs while they are off them: how much may stay, and what others have then."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.errors import NodeError
from controller.model import UNPROFILED, Gpu, GpuId, Job, JobId, Snapshot

_MIB = 1 << 20


def room(job: Job, node: str, seen: Snapshot, allocated: Iterable[JobId], share: float) -> tuple[int, str]:
    """How many bytes a job may leave on each GPU of a node, and why not more.

    What all jobs leave on a GPU stays within this share of its memory, and within what the other jobs that
    are bound to it do not need: each of them must be able to come back.

    Args:
        allocated: jobs to which Slurm has allocated any GPUs of this job.
    """
    found: list[tuple[int, str]] = []
    own = {gpu for gpu in job.placement.gpus if gpu.node == node}
    rivals = [seen.jobs[other] for other in sorted(allocated) if other != job.id and other in seen.jobs]
    for gpu in seen.nodes[node].gpus if node in seen.nodes else ():
        if gpu.id not in own:
            continue
        left_bytes = gpu.left_bytes(job.id)
        text = f"suspended jobs may keep {share:.0%} of GPU {gpu.id} together (suspend.residual_fraction)" + (
            f", and {_keepers(gpu, job.id)} {left_bytes // _MIB} MiB of it" if left_bytes else ""
        )
        found.append((int(share * gpu.memory_bytes) - left_bytes, text))
        for other in rivals:
            if gpu.id in other.placement.allocation:
                peak_bytes = seen.profiles.get(other.id, UNPROFILED).peak_memory_bytes
                kept_bytes = sum(size for by, size in gpu.left_by if by not in (job.id, other.id))
                text = (
                    f"job {other.id} has had {peak_bytes // _MIB} MiB on a GPU, and may need it on {gpu.id}"
                )
                found.append((gpu.memory_bytes - kept_bytes - peak_bytes, text))
    nothing = (0, f"nothing is known of the GPUs of {node}")
    least_bytes, why = min(found, key=lambda each: each[0], default=nothing)
    return max(0, least_bytes), why


def require_room(
    job: Job, gpus: Iterable[GpuId], seen: Snapshot, left_since: Mapping[JobId, Mapping[GpuId, int]]
) -> None:
    """Raises NodeError gpu_busy where the job, once it has as much memory as it is known to have had, does
    not fit beside what others have left, as it was seen or since then."""
    peak_bytes = seen.profiles.get(job.id, UNPROFILED).peak_memory_bytes
    for gpu_id in sorted(gpus) if peak_bytes else ():
        node = seen.nodes.get(gpu_id.node)
        gpu = next((gpu for gpu in node.gpus if gpu.id == gpu_id), None) if node is not None else None
        since = {other: left[gpu_id] for other, left in left_since.items() if left.get(gpu_id)}
        if gpu is None or not (gpu.left_by or since):
            continue
        gpu = replace(gpu, left_by=tuple(sorted({**dict(gpu.left_by), **since}.items())))
        left_bytes = gpu.left_bytes(job.id)
        if left_bytes and peak_bytes > gpu.memory_bytes - left_bytes:
            raise NodeError(
                gpu_id.node,
                "gpu_busy",
                f"job {job.id} has had {peak_bytes // _MIB} MiB on a GPU; {gpu_id} has"
                f" {(gpu.memory_bytes - left_bytes) // _MIB} MiB, as {_keepers(gpu, job.id)}"
                f" {left_bytes // _MIB} MiB of it",
            )


def _keepers(gpu: Gpu, job_id: JobId) -> str:
    names = [str(other) for other, _ in gpu.left_by if other != job_id]
    several = len(names) > 1
    return f"suspended job{'s' if several else ''} {', '.join(names[:8])} keep{'' if several else 's'}"
