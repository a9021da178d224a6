# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a node cannot take a job, whatever runs there now."""

from controller.model import Job, Node


def refusal(
    job: Job, node: Node, usable: int, share: int, memory_free_bytes: int | None = None
) -> str | None:
    """Why this node cannot take `share` GPUs of the job, in a few words; None when it can. `usable`: how many
    of its GPUs Gandiva jobs may use. `memory_free_bytes`: host memory. None: not looked at."""
    if not node.available:
        return node.reason or "not available"
    if job.request.gpu_types and not any(gpu.model in job.request.gpu_types for gpu in node.gpus):
        return f"no GPU of type {','.join(job.request.gpu_types)}"
    if why := _refused_by_partition(job, node, share):
        return why
    if node.name in job.excluded_nodes:
        return "excluded by the job"
    if node.name in job.refused_nodes:
        return f"it did not start there ({job.failed_start})"
    if job.required_nodes and node.name not in job.required_nodes:
        return "not in the job's node list"
    if usable < share:
        return f"only {usable} usable {'GPU' if usable == 1 else 'GPUs'}"
    if node.cpus and job.cpus_per_node > node.cpus:
        return f"only {node.cpus} CPUs"
    if node.memory_bytes and job.memory_per_node_bytes > node.memory_bytes:
        return f"only {node.memory_bytes / 2**30:.0f} GiB of host memory"
    if memory_free_bytes is not None and job.memory_per_node_bytes > memory_free_bytes:
        return "not enough free host memory"
    return None


def _refused_by_partition(job: Job, node: Node, share: int) -> str:
    """Why none of the job's partitions has it start there; empty where one does. Slurm spreads no job over
    partitions: one that is on several nodes has its first."""
    if node.partitions is None or not job.partition:
        return ""
    names = job.partition.split(",") if share == job.gpus else [job.partition.partition(",")[0]]
    words = [node.partitions.get(name, f"not in partition {name}") for name in names]
    return "" if "" in words else words[0]
