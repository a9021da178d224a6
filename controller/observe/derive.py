# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs and nodes from what Slurm, the agents and the controller know of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from controller.errors import NodeError
from controller.model import (
    ALLOCATED,
    ON_GPU,
    Gpu,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Node,
    Phase,
    Placement,
    Profile,
    Request,
    Unsuspendable,
    value,
)
from controller.nodes.port import GpuSample, NodeJob, NodeSample
from controller.nodes.protocol import NodePhase
from controller.observe.memory import JobMemory
from controller.observe.node_cache import Sample
from controller.slurm.port import JobState, SlurmJob, SlurmNode

_MAY_START = frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.YIELDED})


@value
class InFlight:
    """A job in transition: what the executor is making of it."""

    starts_on: GpuSet | None
    """The GPUs it is getting; None when it is losing them."""
    allocation: GpuSet = frozenset()


def make_node(node: SlurmNode, sample: Sample | None, present: Set[JobId]) -> Node:
    """A node; GPUs with a process of no job that is known are not healthy."""
    seen = {gpu.index: gpu for gpu in sample.gpus} if isinstance(sample, NodeSample) else {}
    agent_reason = ""
    if not isinstance(sample, NodeSample):
        agent_reason = str(sample) if sample is not None else "its agent was not asked yet"
    gpus = []
    for card in node.gpus:
        gpu, ordinary = seen.get(card.index), card.index in node.ordinary_gpus
        gpus.append(
            Gpu(
                id=GpuId(node.name, card.index),
                model=card.model,
                memory_bytes=gpu.memory_bytes if gpu else 0,
                memory_used_bytes=gpu.memory_used_bytes if gpu else None,
                utilization_fraction=gpu.utilization_fraction if gpu else None,
                healthy=gpu is not None and gpu.healthy and (ordinary or not _foreign(gpu, present)),
                ordinary_job=(node.ordinary_gpus[card.index] or JobId(0)) if ordinary else None,
                shards=card.shards,
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
    )


def _foreign(gpu: GpuSample, present: Set[JobId]) -> bool:
    """Whether a process of no job that is known holds memory on this GPU."""
    return any(p.memory_bytes > 0 and (p.job_id is None or p.job_id not in present) for p in gpu.processes)


def make_job(
    slurm_job: SlurmJob,
    request: Request,
    samples: Mapping[str, Sample],
    memory: JobMemory,
    flight: InFlight | None,
    priority_class: Callable[[str], int],
    now: float,
) -> Job:
    """A job, with the abilities that a policy reads."""
    on_nodes = [_on_node(slurm_job.id, samples.get(name)) for name in slurm_job.nodes]
    phase, allocation = _phase(slurm_job, on_nodes), slurm_job.binding
    gpus = _told(slurm_job.nodes, on_nodes)
    if not gpus or not gpus <= allocation:
        gpus = allocation  # no word from the nodes, or none that can be believed
    if phase is Phase.STARTING and not allocation:
        # Released by a controller that was killed: it may be on the GPUs that it was prepared for any moment.
        allocation = gpus = _prepared_for(slurm_job.id, samples)
    if flight is not None and flight.starts_on is not None:
        phase, gpus, allocation = Phase.STARTING, flight.starts_on, allocation or flight.allocation
    on_gpu = phase in ON_GPU
    failed = memory.failed_suspends
    held = memory.held_until is not None and memory.held_until > now
    unsuspendable = memory.unsuspendable_until is not None and memory.unsuspendable_until > now
    seen = [job for job in on_nodes if isinstance(job, NodeJob)]
    requeued = failed is not None and failed.way_out is not Unsuspendable.KEEP
    return Job(
        id=slurm_job.id,
        user=slurm_job.user,
        request=request,
        submit_time=slurm_job.submit_time,
        name=slurm_job.name,
        account=slurm_job.account,
        qos=slurm_job.qos,
        partition=slurm_job.partition,
        uid=slurm_job.uid,
        priority_class=priority_class(slurm_job.qos),
        phase=phase,
        placement=Placement(
            gpus if on_gpu else frozenset(), allocation if phase in ALLOCATED else frozenset()
        ),
        last=gpus,
        promised=memory.promised if phase is Phase.QUEUED else frozenset(),
        may_start=phase in _MAY_START and flight is None and not held,
        may_stop=phase is Phase.RUNNING and flight is None and not held and not unsuspendable,
        leaving=on_gpu and flight is not None and flight.starts_on is None,
        switching=flight is not None,
        # No move is worth a requeue.
        may_move=bool(seen) and all(job.movable for job in seen) and not requeued,
        held_until=memory.held_until if held else None,
        failed_suspends=failed,
        start_time=memory.first_start,
        memory_per_node_bytes=slurm_job.memory_per_node_bytes,
        cpus_per_node=slurm_job.cpus_per_node,
        excluded_nodes=slurm_job.excluded_nodes,
        # Not Slurm's own list: a binding of ours stands there once the job was placed.
        required_nodes=frozenset(request.nodelist),
    )


def _on_node(job_id: JobId, sample: Sample | None) -> NodeJob | NodeError | None:
    if isinstance(sample, NodeSample):
        return sample.jobs.get(job_id)
    return sample or NodeError("?", "unreachable", "not asked yet")


def _told(names: tuple[str, ...], on_nodes: list[NodeJob | NodeError | None]) -> GpuSet:
    """The GPUs that a job uses, as its nodes say."""
    return frozenset(
        GpuId(name, ordinal)
        for name, job in zip(names, on_nodes, strict=True)
        if isinstance(job, NodeJob)
        for ordinal in job.gpus
    )


def _prepared_for(job_id: JobId, samples: Mapping[str, Sample]) -> GpuSet:
    """The GPUs that control blocks of a job name, on whatever node."""
    return frozenset(
        GpuId(name, ordinal)
        for name, sample in samples.items()
        if isinstance(sample, NodeSample) and job_id in sample.jobs
        for ordinal in sample.jobs[job_id].gpus
    )


def _phase(job: SlurmJob, on_nodes: list[NodeJob | NodeError | None]) -> Phase:
    """Where the job really is; `Phase` says what each means."""
    match job.state:
        case JobState.PENDING:
            if not job.held:
                return Phase.STARTING
            return Phase.QUEUED if job.eligible and not job.user_hold else Phase.INELIGIBLE
        case JobState.CONFIGURING:
            return Phase.STARTING
        case JobState.COMPLETING:
            return Phase.COMPLETING
    if any(isinstance(on_node, NodeError) for on_node in on_nodes):
        return Phase.UNKNOWN
    phases = {NodePhase.RUNNING if on_node is None else on_node.phase for on_node in on_nodes}  # type: ignore[union-attr]
    if phases == {NodePhase.YIELDED}:
        return Phase.SUSPENDED if job.state is JobState.SUSPENDED else Phase.YIELDED
    if phases == {NodePhase.RUNNING} and job.state is JobState.RUNNING:
        return Phase.RUNNING
    return Phase.STUCK


def make_profile(known: Profile, seen: list[NodeJob], peak_bytes: int) -> Profile:
    """What is known of a job, with what its ranks and its GPUs show now."""
    ranks = [rank for job in seen for rank in job.ranks]
    profile = replace(
        known,
        peak_memory_bytes=max(known.peak_memory_bytes, peak_bytes),
        state_bytes=max((rank.state_bytes for rank in ranks), default=known.state_bytes),
        largest_tensor_bytes=max((r.largest_tensor_bytes for r in ranks), default=known.largest_tensor_bytes),
    )
    return known if profile == known else profile
