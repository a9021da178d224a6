# SPDX-License-Identifier: GPL-2.0-or-later
"""Nodes from what Slurm and their agents say of them. Pure."""

from collections.abc import Mapping
from operator import attrgetter

from controller.cluster.port import ClusterJob, ClusterNode
from controller.model import Gpu, GpuId, JobId, Node
from controller.nodes.port import NodeSample, held_on
from controller.nodes.protocol import GpuSample, NodePhase
from controller.observe.node_cache import Sample


def make_node(node: ClusterNode, sample: Sample | None, jobs: Mapping[JobId, ClusterJob]) -> Node:
    """A node. A GPU is not healthy with memory of a process on it that should not be there.

    Args:
        jobs: those that Slurm knows.
    """
    seen: dict[int, GpuSample] = {}
    taken: Mapping[int, JobId] = {}
    agent_reason = ""
    if not isinstance(sample, NodeSample):
        agent_reason = "its agent was not asked yet" if sample is None else str(sample)
    else:
        seen = {gpu.index: gpu for gpu in sample.gpus}
        taken = trespassers(sample, jobs)
    gpus = []
    for card in node.gpus:
        gpu, ordinary = seen.get(card.index), card.index in node.ordinary_gpus
        reason = agent_reason or broken(gpu)
        if not reason and card.index in taken:
            reason = f"job {taken[card.index]} has memory there, and it is not its own now"
        held = held_on(gpu).items() if gpu is not None and not ordinary else ()
        if not reason and any(size and (job_id is None or job_id not in jobs) for job_id, size in held):
            reason = "a process of no job has memory there"
        gpus.append(
            Gpu(
                id=GpuId(node.name, card.index),
                model=card.model,
                memory_bytes=gpu.memory_bytes if gpu else 0,
                healthy=not reason,
                reason=reason,
                ordinary_job=(node.ordinary_gpus[card.index] or JobId(0)) if ordinary else None,
                shards=card.shards,
                left_by=_left_by(gpu, sample) if gpu and isinstance(sample, NodeSample) else (),
            )
        )
    return Node(
        name=node.name,
        gpus=tuple(gpus),
        available=node.up and not agent_reason,
        reason=agent_reason if node.up else f"{node.state} {node.reason}".strip(),
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        memory_free_bytes=max(0, node.memory_bytes - node.memory_allocated_bytes),
        switch=node.switch,
        partitions=node.partitions,
        unconfined=sample.unconfined if isinstance(sample, NodeSample) else "",
    )


def broken(gpu: GpuSample | None) -> str:
    """What the agent says is wrong with a GPU itself; empty: nothing. None: it did not name the GPU."""
    if gpu is None:
        return "the driver does not list it: it has fallen off the bus, or the node has no such GPU"
    return "" if gpu.healthy else gpu.reason or "it cannot be read"


def _left_by(gpu: GpuSample, sample: NodeSample) -> tuple[tuple[JobId, int], ...]:
    yielded = {job_id for job_id, job in sample.jobs.items() if job.phase is NodePhase.YIELDED}
    held = held_on(gpu).items()
    return tuple(sorted((job_id, memory) for job_id, memory in held if memory and job_id in yielded))


def trespassers(sample: NodeSample, jobs: Mapping[JobId, ClusterJob]) -> dict[int, JobId]:
    """GPUs of a node on which a job that Slurm knows has memory that it should not have there now, and which
    job: one that was to leave it, or that Slurm gave other GPUs. No other job gets them."""
    whole = {seen.id for each in sample.jobs if (seen := jobs.get(each)) is not None and seen.exclusive_gpus}
    ours = [job for job in sample.jobs.values() if job.job_id not in whole]
    found = {index: job.job_id for job in ours for index in job.trespasses}
    for gpu in sample.gpus:
        for job_id, memory in held_on(gpu).items():
            job = jobs.get(job_id) if job_id is not None and memory else None
            if job is not None and job.binding and (sample.node, gpu.index) not in job.binding:
                found[gpu.index] = job.id
    return found


_OFFERED = attrgetter("available", "cpus", "memory_bytes", "memory_free_bytes", "switch", "partitions")


def offer(node: Node | None) -> tuple[object, ...] | None:
    """What placement depends on."""
    if node is None:
        return None
    gpus = tuple((gpu.id, gpu.model, gpu.shards, gpu.usable) for gpu in node.gpus)
    return gpus, _OFFERED(node)
