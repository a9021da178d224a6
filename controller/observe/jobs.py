# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs from what Slurm, the agents and the controller know of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from controller.errors import NodeError
from controller.model import (
    ALLOCATED,
    IN_HOST_MEMORY,
    ON_GPU,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Phase,
    Placement,
    Request,
    Unsuspendable,
    value,
)
from controller.nodes.port import NodeSample
from controller.nodes.protocol import NodeJob, NodePhase
from controller.observe.memory import FailedStart, JobMemory, Limit
from controller.observe.node_cache import Sample
from controller.slurm.port import JobState, SlurmJob

_OnNode: TypeAlias = NodeJob | NodeError | None
"""What a node says of a job. None: it has no control block of it."""

TRESPASS_SECONDS = 30.0
_MAY_START = frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.YIELDED})


@value
class InFlight:
    """What an operation under way is making of its job."""

    starts_on: GpuSet | None = None
    """The GPUs it is getting."""
    allocation: GpuSet = frozenset()
    resumes: bool = False
    """It was on GPUs of its allocation before."""
    leaves: bool = False
    """It is on its way off its GPUs."""


def make_job(
    slurm_job: SlurmJob,
    request: Request,
    samples: Mapping[str, Sample],
    prepared: GpuSet,
    memory: JobMemory,
    flight: InFlight | None,
    priority_class: int,
    now: float,
    *,
    bad: GpuSet = frozenset(),
    keeps_checkpoints: bool = False,
    resizes_here: bool = False,
    limit: Limit | None = None,
) -> Job:
    """A job, with the abilities that a policy reads.

    Args:
        prepared: the GPUs that control blocks of the job name, on whatever node.
        flight: what an operation is making of it, if one is under way.
        bad: GPUs of its nodes that no job is put on.
        keeps_checkpoints: stopped, it starts again anywhere from its own checkpoint.
        limit: the one of Slurm that holds for it and others, if one does.
        resizes_here: it may go on with other numbers of GPUs of its node, if its sessions can.
    """
    on_nodes = {name: _on_node(slurm_job.id, name, samples.get(name)) for name in slurm_job.nodes}
    phase, allocation = _phase(slurm_job, on_nodes.values()), slurm_job.binding
    gpus = _used(allocation, on_nodes)
    if phase is Phase.STARTING and not allocation:
        # Released by a controller that was killed: it may be on the GPUs that it was prepared for any moment.
        allocation = gpus = prepared
    if flight is not None and flight.starts_on is not None:
        phase = Phase.RESUMING if flight.resumes else Phase.STARTING
        gpus, allocation = flight.starts_on, allocation or flight.allocation
    holds = gpus if phase in ON_GPU else frozenset()
    if phase is Phase.STUCK:
        # A gang may be back on its GPUs on some of its nodes, while others have them on the other nodes.
        holds = frozenset(gpu for gpu in gpus if not _is_off(on_nodes.get(gpu.node)))
        phase = Phase.SUSPENDING if flight is not None and flight.leaves else phase
    failed, trespass = memory.failed_suspends, _trespass_counts_at(memory)
    refused = _failed_start(memory, limit, now) if phase is Phase.QUEUED else None
    held_until = _later(max((memory.held_until or 0.0, refused.until if refused else 0.0)), now)
    refused_nodes = frozenset(name for name, (until, _) in memory.refused_by.items() if until > now)
    promised = memory.promised
    if phase is Phase.QUEUED and refused_nodes.intersection(gpu.node for gpu in promised):
        promised = frozenset()
    free = flight is None and held_until is None
    # One that a killed controller has requeued goes on leaving.
    leaves = flight.leaves if flight is not None else phase is Phase.COMPLETING and bool(memory.promised)
    waits_elsewhere = phase is Phase.QUEUED or leaves
    blocks = [job for job in on_nodes.values() if isinstance(job, NodeJob)]
    # Nobody else gets a bad GPU, and off it the job could not come back. A trespasser has made it bad itself.
    stays = not bad.isdisjoint(gpus) and not any(block.trespasses for block in blocks)
    suspendable = _later(memory.unsuspendable_until, now) is None and not stays
    may_stop = phase is Phase.RUNNING and free and suspendable
    goes_out = free and phase in (Phase.RUNNING, Phase.STUCK)
    can_resize = bool(blocks) and all(block.resizable for block in blocks)
    in_host_memory = phase in IN_HOST_MEMORY
    savable = _later(memory.unsavable_until, now) is None
    has_store = savable and 0 < len(blocks) == len(on_nodes) and all(block.has_store for block in blocks)
    starts_again = slurm_job.may_requeue and (keeps_checkpoints or has_store)
    may_save = may_stop or (in_host_memory and free and all(block.saves_yielded for block in blocks))
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
        priority_class=priority_class,
        phase=phase,
        placement=Placement(holds, allocation if phase in ALLOCATED else frozenset()),
        last=gpus,
        promised=promised if waits_elsewhere else frozenset(),
        promised_size=memory.promised_size if waits_elsewhere else 0,
        may_start=phase in _MAY_START and free and not slurm_job.user_hold,
        obstacle=slurm_job.obstacle if phase is Phase.INELIGIBLE or in_host_memory else "",
        may_stop=may_stop,
        leaving=leaves and (phase in ON_GPU or (in_host_memory and bool(memory.promised))),
        switching=flight is not None,
        # No move is worth a requeue.
        may_move=bool(blocks)
        and all(block.movable for block in blocks)
        and (failed is None or failed.way_out is Unsuspendable.KEEP),
        has_store=has_store,
        may_requeue=slurm_job.may_requeue,
        may_migrate=starts_again and (has_store or not in_host_memory) and request.may_migrate and may_save,
        starts_anywhere=(keeps_checkpoints or (memory.has_store and savable))
        and request.may_migrate
        and not in_host_memory,
        may_resize=starts_again and request.adaptive and may_stop,
        may_resize_here=resizes_here and (phase is Phase.QUEUED or (may_stop and can_resize)),
        kept_size=len(gpus) if in_host_memory and len(gpus) != request.size.wanted and not can_resize else 0,
        held_until=held_until,
        failed_start=refused.why if refused else "",
        behind=refused is not None and refused.behind_until > now,
        refused_nodes=refused_nodes,
        keeps_until=_later(memory.keeps_until, now) if phase in ON_GPU else None,
        failed_suspends=failed,
        trespasses=goes_out and trespass is not None and now >= trespass,
        start_time=memory.first_start,
        deadline_at=slurm_job.deadline_at,
        memory_per_node_bytes=slurm_job.memory_per_node_bytes,
        cpus_per_node=slurm_job.cpus_per_node,
        excluded_nodes=slurm_job.excluded_nodes,
        # Not Slurm's own list: the controller's binding stands there once the job was placed.
        required_nodes=frozenset(request.nodelist),
    )


def changes_at(job: Job, memory: JobMemory, now: float, limit: Limit | None = None) -> float | None:
    """When a job made at this moment is another one by the passing of time alone."""
    times = [job.held_until, job.keeps_until, memory.unsuspendable_until, memory.unsavable_until]
    times += [_trespass_counts_at(memory), *(until for until, _ in memory.refused_by.values())]
    if job.behind and (refused := _failed_start(memory, limit, now)) is not None:
        times.append(refused.behind_until)
    return min([time for time in times if time is not None and time > now], default=None)


def _trespass_counts_at(memory: JobMemory) -> float | None:
    """Not at once: what is seen in the middle of a switch may be over."""
    return None if memory.trespasses_since is None else memory.trespasses_since + TRESPASS_SECONDS


def _failed_start(memory: JobMemory, limit: Limit | None, now: float) -> FailedStart | None:
    """Its own, or that of its limit: the one that counts longer."""
    own, common = memory.last_failed, None if limit is None else limit.failed
    known = [] if own is None else [own]
    if common is not None and common.behind_until > now:
        known.append(common)
    return max(known, key=lambda failed: failed.behind_until, default=None)


def _later(time: float | None, now: float) -> float | None:
    return time if time is not None and time > now else None


def _on_node(job_id: JobId, name: str, sample: Sample | None) -> _OnNode:
    if isinstance(sample, NodeSample):
        return sample.jobs.get(job_id)
    return sample or NodeError(name, "unreachable", "not asked yet")


def _used(allocation: GpuSet, on_nodes: Mapping[str, _OnNode]) -> GpuSet:
    """The GPUs that a job uses, as its nodes say: all that Slurm gave it on nodes that do not, and where what
    they say cannot be believed."""
    blocks = {name: job for name, job in on_nodes.items() if isinstance(job, NodeJob)}
    said = frozenset(GpuId(name, ordinal) for name, job in blocks.items() for ordinal in job.gpus)
    if not said <= allocation:
        return allocation
    return said | {gpu for gpu in allocation if gpu.node not in blocks}


def _is_off(on_node: _OnNode) -> bool:
    """Whether the job is known to be off its GPUs of a node."""
    return isinstance(on_node, NodeJob) and on_node.phase is NodePhase.YIELDED and not on_node.trespasses


def _phase(job: SlurmJob, on_nodes: Iterable[_OnNode]) -> Phase:
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
    phases: set[NodePhase] = set()
    for on_node in on_nodes:
        if isinstance(on_node, NodeError):
            return Phase.UNKNOWN
        if on_node is None:
            phases.add(NodePhase.RUNNING)
        elif on_node.phase is NodePhase.YIELDED and on_node.trespasses:
            return Phase.STUCK
        else:
            phases.add(on_node.phase)
    if phases == {NodePhase.YIELDED}:
        return Phase.SUSPENDED if job.state is JobState.SUSPENDED else Phase.YIELDED
    if phases == {NodePhase.RUNNING} and job.state is JobState.RUNNING:
        return Phase.RUNNING
    return Phase.STUCK
