# SPDX-License-Identifier: GPL-2.0-or-later
"""Joining what Slurm says with what the nodes say into one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.cluster.port import ClusterView, JobState, SlurmJob, SlurmNode
from controller.errors import NodeError
from controller.memory import JobMemory, Memory
from controller.model import (
    Gpu,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Node,
    Phase,
    Profile,
    Request,
    Snapshot,
    Unsuspendable,
)
from controller.nodes.port import GpuSample, NodeJob, NodePhase, NodeSample

# (Python 3.11 takes seven times as long to read these of their class, which is done for every job.)
_PENDING, _CONFIGURING, _RUNNING = JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING
_SUSPENDED, _COMPLETING, _ENDED = JobState.SUSPENDED, JobState.COMPLETING, JobState.ENDED
_NODE_RUNNING, _NODE_YIELDED = NodePhase.RUNNING, NodePhase.YIELDED


@dataclass(frozen=True, slots=True)
class InFlight:
    """A job in transition: what the executor is making of it."""

    starts_on: GpuSet | None
    """The GPUs it is getting; None when it is losing them."""
    binding: GpuSet


def build_snapshot(
    view: ClusterView,
    samples: Mapping[str, NodeSample | NodeError],
    memory: Memory,
    in_flight: Mapping[JobId, InFlight],
    requests: Callable[[SlurmJob], Request | None],
    priority_class: Callable[[str], int],
    now: float,
) -> Snapshot:
    """The snapshot at `now`.

    `requests` gives the parsed request of a job, or None when it makes no sense (the job is left out).
    Jobs in flight are shown as holding the GPUs they leave or get, and are marked busy.
    """
    by_name = {node.name: node for node in view.nodes}
    present = {job.id: job for job in view.jobs}
    nodes = {name: make_node(node, samples.get(name), present) for name, node in by_name.items()}
    jobs: dict[JobId, Job] = {}
    for slurm_job in view.jobs:
        if slurm_job.state is _ENDED or slurm_job.exclusive_gpus:
            continue
        request = requests(slurm_job)
        if request is None:
            continue
        job = make_job(slurm_job, request, samples, memory[slurm_job.id], priority_class, now)
        flight = in_flight.get(slurm_job.id)
        jobs[job.id] = job if flight is None else in_transition(job, flight)
    return Snapshot(now, nodes, jobs, busy=frozenset(j for j in in_flight if j in jobs))


def in_transition(job: Job, flight: InFlight) -> Job:
    """A job in flight as it is shown: on the GPUs it is getting, or still on those it leaves."""
    if flight.starts_on is None:
        return job
    return replace(
        job, phase=Phase.STARTING, running_on=flight.starts_on, binding=job.binding or flight.binding
    )


def make_node(
    node: SlurmNode, sample: NodeSample | NodeError | None, present: Mapping[JobId, SlurmJob]
) -> Node:
    """A node from what Slurm and its agent say of it. `present`: the Gandiva jobs that Slurm knows."""
    if isinstance(sample, NodeSample):
        gpu_samples = {gpu.index: gpu for gpu in sample.gpus}
        trespassed = trespassers(sample, present)
        agent_reason = ""
    else:
        gpu_samples, trespassed = {}, {}
        agent_reason = str(sample) if sample is not None else "its agent was not asked yet"
    gpus = []
    for card in node.gpus:
        seen = gpu_samples.get(card.index)
        ordinary = card.index in node.ordinary_gpus
        gpus.append(
            Gpu(
                id=GpuId(node.name, card.index),
                model=card.model,
                memory_bytes=seen.memory_bytes if seen else 0,
                memory_used_bytes=seen.memory_used_bytes if seen else None,
                utilization_fraction=seen.utilization_fraction if seen else None,
                healthy=seen is not None
                and seen.healthy
                and card.index not in trespassed
                and (ordinary or not _foreign(seen, present)),
                ordinary_job=(node.ordinary_gpus[card.index] or JobId(0)) if ordinary else None,
                shards=card.shards,
                left_by=_left_by(seen, sample) if seen and isinstance(sample, NodeSample) else (),
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


def _left_by(gpu: GpuSample, sample: NodeSample) -> tuple[tuple[JobId, int], ...]:
    """What jobs that are off the GPUs of this node have left on one."""
    left: dict[JobId, int] = {}
    for process in gpu.processes:
        job = sample.jobs.get(process.job_id) if process.job_id is not None else None
        if job is not None and job.phase is _NODE_YIELDED and process.memory_bytes:
            left[job.job_id] = left.get(job.job_id, 0) + process.memory_bytes
    return tuple(sorted(left.items()))


def _foreign(gpu: GpuSample, present: Mapping[JobId, SlurmJob]) -> bool:
    """Whether a process that belongs to no job we know holds memory on this GPU."""
    return any(p.memory_bytes > 0 and (p.job_id is None or p.job_id not in present) for p in gpu.processes)


def trespassers(sample: NodeSample, present: Mapping[JobId, SlurmJob]) -> dict[int, JobId]:
    """GPUs of a node on which a job we know has memory that it should not have there now, and which job: one
    that was to leave it, or that Slurm gave other GPUs. No other job gets them."""
    found = {index: job.job_id for job in sample.jobs.values() for index in job.trespasses}
    for gpu in sample.gpus:
        for process in gpu.processes:
            job = None if process.job_id is None else present.get(process.job_id)
            if job is None or not job.binding or process.memory_bytes == 0:
                continue
            if GpuId(sample.node, gpu.index) not in job.binding:
                found[gpu.index] = job.id
    return found


def make_job(
    slurm_job: SlurmJob,
    request: Request,
    samples: Mapping[str, NodeSample | NodeError],
    memory: JobMemory,
    priority_class: Callable[[str], int],
    now: float,
    accrues_since: float | None = None,
) -> Job:
    """A job from what Slurm, its nodes and the controller know of it."""
    on_nodes: list[NodeJob | NodeError | None] = []
    seen: list[NodeJob] = []
    running_on = binding = slurm_job.binding
    profile = memory.profile
    if slurm_job.nodes:
        job_id, memory_bytes, told_count = slurm_job.id, 0, 0
        for name in slurm_job.nodes:
            sample = samples.get(name)
            if isinstance(sample, NodeSample):
                memory_bytes = max(memory_bytes, sample.memory_bytes_of(job_id))
                node_job = sample.jobs.get(job_id)
                on_nodes.append(node_job)
                if node_job is not None:
                    seen.append(node_job)
                    told_count += len(node_job.gpus)
            else:
                on_nodes.append(sample or NodeError("?", "unreachable", "not asked yet"))
        if told_count < len(binding):
            told = _told(slurm_job.nodes, on_nodes)
            if told < binding:
                # (No word from the nodes, or none that can be believed: then all that Slurm gave it, as one
                # object for the two, which is compared sooner at every look.)
                running_on = told or binding
        profile = _profile(profile, seen, memory_bytes)
    phase = _phase(slurm_job, on_nodes)
    if phase is Phase.STARTING and not binding:
        # Released by a controller that was killed: it may be on the GPUs that it was prepared for any moment.
        binding = running_on = _prepared_for(slurm_job.id, samples)
    failed = memory.failed_suspends
    unsuspendable = failed is not None and failed.way_out is not Unsuspendable.KEEP
    # (By place, in the order of the fields: by name it takes three times as long, for each job at each look.)
    return Job(
        slurm_job.id,
        slurm_job.user,
        request,
        phase,
        slurm_job.submit_time,
        slurm_job.name,
        slurm_job.account,
        slurm_job.partition,
        slurm_job.uid,
        priority_class(slurm_job.qos),
        binding,
        running_on,
        # (No move is worth a requeue.)
        bool(seen) and all(n.movable for n in seen) and not unsuspendable,
        memory.unsuspendable_until is None or memory.unsuspendable_until <= now,  # suspendable
        memory.first_start,
        memory.run_seconds_at(now),
        memory.gpu_seconds_at(now),
        accrues_since,
        slurm_job.duration_seconds,
        slurm_job.memory_per_node_bytes,
        slurm_job.cpus_per_node,
        slurm_job.excluded_nodes,
        # Not Slurm's own list: a binding of ours stands there once the job was placed.
        frozenset(request.nodelist),
        memory.not_before,
        memory.exempt_until,
        profile,
        failed,
    )


def _prepared_for(job_id: JobId, samples: Mapping[str, NodeSample | NodeError]) -> GpuSet:
    """The GPUs that control blocks of a job name, on whatever node."""
    return frozenset(
        GpuId(name, ordinal)
        for name, sample in samples.items()
        if isinstance(sample, NodeSample) and job_id in sample.jobs
        for ordinal in sample.jobs[job_id].gpus
    )


def _told(nodes: tuple[str, ...], on_nodes: list[NodeJob | NodeError | None]) -> GpuSet:
    """The GPUs that a job uses, as its nodes say."""
    return frozenset(
        GpuId(name, ordinal)
        for name, node_job in zip(nodes, on_nodes, strict=True)
        if isinstance(node_job, NodeJob)
        for ordinal in node_job.gpus
    )


def _phase(job: SlurmJob, on_nodes: list[NodeJob | NodeError | None]) -> Phase:
    """Where the job really is; `Phase` says what each means."""
    if job.state is _PENDING:
        if not job.held:
            return Phase.STARTING
        return Phase.QUEUED if job.eligible and not job.user_hold else Phase.INELIGIBLE
    if job.state is _CONFIGURING:
        return Phase.STARTING
    if job.state is _COMPLETING:
        return Phase.COMPLETING
    phases = set()
    for on_node in on_nodes:
        if isinstance(on_node, NodeError):
            return Phase.UNKNOWN
        if on_node is None:
            phases.add(_NODE_RUNNING)
        elif on_node.phase is _NODE_YIELDED and on_node.trespasses:
            return Phase.STUCK
        else:
            phases.add(on_node.phase)
    if phases == {_NODE_YIELDED}:
        return Phase.SUSPENDED if job.state is _SUSPENDED else Phase.YIELDED
    if phases == {_NODE_RUNNING} and job.state is _RUNNING:
        return Phase.RUNNING
    return Phase.STUCK


def _profile(known: Profile, seen: list[NodeJob], memory_bytes: int) -> Profile:
    """What is known of the job, brought up to date."""
    peak_memory_bytes = max(known.peak_memory_bytes, memory_bytes)
    step_seconds = samples_done = 0.0
    steps_done = state_bytes = largest_tensor_bytes = 0
    any_rank = False
    for node_job in seen:
        for rank in node_job.ranks:
            any_rank = True
            step_seconds = max(step_seconds, rank.step_seconds)
            steps_done = max(steps_done, rank.steps_done)
            samples_done += rank.samples_done
            state_bytes = max(state_bytes, rank.state_bytes)
            largest_tensor_bytes = max(largest_tensor_bytes, rank.largest_tensor_bytes)
    if not any_rank:
        same = peak_memory_bytes == known.peak_memory_bytes
        return known if same else replace(known, peak_memory_bytes=peak_memory_bytes)
    return Profile(
        step_seconds=step_seconds or known.step_seconds,
        steps_done=steps_done,
        samples_done=samples_done,
        peak_memory_bytes=peak_memory_bytes,
        utilization_fraction=known.utilization_fraction,
        state_bytes=state_bytes,
        largest_tensor_bytes=largest_tensor_bytes,
    )
