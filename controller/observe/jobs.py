# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs from what Slurm, the agents and the controller know of them. Pure."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from controller.cluster.port import ClusterJob, JobState
from controller.errors import NodeError
from controller.model import (
    ALLOCATED,
    IN_HOST_MEMORY,
    ON_GPU,
    GpuId,
    GpuSet,
    Job,
    Phase,
    Placement,
    Request,
    SuspendMethod,
    Unsaved,
    Unsuspendable,
    value,
)
from controller.nodes.protocol import NodeJob, NodePhase
from controller.observe.memory import FailedStart, JobMemory, Limit
from controller.observe.node_cache import OnNode

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
    saves: bool = False
    """It is on its GPUs, or off them, as before."""


@value(kw_only=True)
class Seen:
    """What a job is made of."""

    job: ClusterJob
    request: Request
    on_nodes: Mapping[str, OnNode]
    """Of all its nodes."""
    prepared: GpuSet = frozenset()
    """The GPUs that control blocks of the job name, on whatever node."""
    bad: GpuSet = frozenset()
    """GPUs of its nodes that no job is put on."""
    memory: JobMemory
    flight: InFlight | None = None
    """What an operation is making of it, if one is under way."""
    limit: Limit | None = None
    """The one of Slurm that holds for it and others, if one does."""
    method: SuspendMethod = SuspendMethod.TRANSPARENT
    """How it gets off its GPUs."""
    priority_class: int = 0
    save_every_seconds: float = 0.0
    """0: never."""
    now: float

    @property
    def blocks(self) -> list[NodeJob]:
        return [job for job in self.on_nodes.values() if isinstance(job, NodeJob)]


def make_job(seen: Seen) -> Job:
    """A job, with the abilities that a policy reads."""
    slurm_job, memory, flight, now = seen.job, seen.memory, seen.flight, seen.now
    phase, last, placement = _where(seen)
    held_until, refused, refused_nodes = _constraints(seen, phase)
    queued, in_host_memory = phase is Phase.QUEUED, phase in IN_HOST_MEMORY
    free = flight is None and held_until is None
    # One that a killed controller has requeued goes on leaving.
    leaves = flight.leaves if flight is not None else phase is Phase.COMPLETING and bool(memory.promised)
    promised = memory.promised if queued or leaves else frozenset()
    if queued and refused_nodes.intersection(gpu.node for gpu in promised):
        promised = frozenset()
    off_resized = in_host_memory and len(last) != seen.request.size.wanted
    return Job(
        id=slurm_job.id,
        user=slurm_job.user,
        request=seen.request,
        submit_time=slurm_job.submit_time,
        name=slurm_job.name,
        account=slurm_job.account,
        qos=slurm_job.qos,
        partition=slurm_job.partition,
        uid=slurm_job.uid,
        priority_class=seen.priority_class,
        phase=phase,
        placement=placement,
        last=last,
        promised=promised,
        promised_size=memory.promised_size if queued or leaves else 0,
        obstacle=slurm_job.obstacle if phase is Phase.INELIGIBLE or in_host_memory else "",
        leaving=leaves and (phase in ON_GPU or (in_host_memory and bool(memory.promised))),
        switching=flight is not None,
        saving=flight is not None and flight.saves,
        may_requeue=slurm_job.may_requeue,
        kept_size=len(last) if off_resized and not all(block.resizable for block in seen.blocks) else 0,
        held_until=held_until,
        failed_start=refused.why if refused else "",
        behind=refused is not None and refused.behind_until > now,
        refused_nodes=refused_nodes,
        keeps_until=_later(memory.keeps_until, now) if phase in ON_GPU else None,
        failed_suspends=memory.failed_suspends,
        start_time=memory.first_start,
        deadline_at=slurm_job.deadline_at,
        memory_per_node_bytes=slurm_job.memory_per_node_bytes,
        cpus_per_node=slurm_job.cpus_per_node,
        excluded_nodes=slurm_job.excluded_nodes,
        # Not Slurm's own list: the controller's binding stands there once the job was placed.
        required_nodes=frozenset(seen.request.nodelist),
        **_abilities(seen, phase, last, free),
    )


def _where(seen: Seen) -> tuple[Phase, GpuSet, Placement]:
    """Its phase, the GPUs it uses or used last, and those that are not free for others."""
    phase, allocation = _phase(seen.job, seen.on_nodes.values()), seen.job.binding
    gpus, flight = _used(allocation, seen.on_nodes), seen.flight
    if phase is Phase.STARTING and not allocation:
        # Released by a controller that was killed: it may be on the GPUs that it was prepared for any moment.
        allocation = gpus = seen.prepared
    if flight is not None and flight.starts_on is not None:
        phase = Phase.RESUMING if flight.resumes else Phase.STARTING
        gpus, allocation = flight.starts_on, allocation or flight.allocation
    holds = gpus if phase in ON_GPU else frozenset()
    if phase is Phase.COMPLETING and _had_left(seen):
        # It may take long to end, and others are on its GPUs.
        holds = frozenset(gpu for gpu in gpus if _is_on(seen.on_nodes.get(gpu.node)))
    if phase is Phase.STUCK:
        # A gang may be back on its GPUs on some of its nodes, while others have them on the other nodes.
        holds = frozenset(gpu for gpu in gpus if not _is_off(seen.on_nodes.get(gpu.node)))
        phase = Phase.SUSPENDING if flight is not None and flight.leaves else phase
        phase = Phase.RUNNING if flight is not None and flight.saves else phase
    return phase, gpus, Placement(holds, allocation if phase in ALLOCATED else frozenset())


def _constraints(seen: Seen, phase: Phase) -> tuple[float | None, FailedStart | None, frozenset[str]]:
    """Until when nothing is tried with it, the failed start that counts, and the nodes that are left out."""
    memory, now = seen.memory, seen.now
    refused = _failed_start(memory, seen.limit, now) if phase is Phase.QUEUED else None
    held_until = _later(max(memory.held_until or 0.0, refused.until if refused else 0.0), now)
    refused_nodes = frozenset(name for name, (until, _) in memory.refused_by.items() if until > now)
    return held_until, refused, refused_nodes


def _abilities(seen: Seen, phase: Phase, last: GpuSet, free: bool) -> dict[str, Any]:
    """What a plan may do with it. `free`: it may change now at all."""
    memory, blocks, now, adaptive = seen.memory, seen.blocks, seen.now, seen.request.adaptive
    in_host_memory, failed = phase in IN_HOST_MEMORY, memory.failed_suspends
    # Nobody else gets a bad GPU, and off it the job could not come back. A trespasser has made it bad itself.
    stays = not seen.bad.isdisjoint(last) and not any(block.trespasses for block in blocks)
    suspendable = _later(memory.unsuspendable_until, now) is None and not stays
    may_stop = phase is Phase.RUNNING and free and suspendable
    saves_off = in_host_memory and free and all(block.saves_yielded for block in blocks)
    movable = bool(blocks) and all(block.movable for block in blocks)
    resizable = bool(blocks) and all(block.resizable for block in blocks)
    savable = _later(memory.unsavable_until, now) is None
    has_store = savable and 0 < len(blocks) == len(seen.on_nodes) and all(block.has_store for block in blocks)
    saves_at = _saves_at(seen) if has_store and (saves_off or (phase is Phase.RUNNING and free)) else {}
    keeps_checkpoints, migrates = seen.method is SuspendMethod.REQUEUE, seen.request.may_migrate
    starts_again = seen.job.may_requeue and (keeps_checkpoints or has_store)
    starts_anywhere = migrates and (keeps_checkpoints or (memory.has_store and savable))
    resizes_here = adaptive and seen.method is SuspendMethod.COOPERATIVE
    return {
        "may_start": phase in _MAY_START and free and not seen.job.user_hold,
        "may_stop": may_stop,
        # No move is worth a requeue.
        "may_move": movable and (failed is None or failed.way_out is Unsuspendable.KEEP),
        "has_store": has_store,
        "may_migrate": starts_again
        and migrates
        and (may_stop or saves_off)
        and (has_store or not in_host_memory),
        "starts_anywhere": starts_anywhere and not in_host_memory,
        "unsaved": max((how for how, at in saves_at.items() if at <= now), default=Unsaved.LITTLE),
        "saves_off": saves_off if in_host_memory and free else memory.saves_off,
        "may_resize": starts_again and adaptive and may_stop,
        "may_resize_here": resizes_here and (phase is Phase.QUEUED or (may_stop and resizable)),
        "trespasses": free and phase in (Phase.RUNNING, Phase.STUCK) and _trespass_counts_at(memory) <= now,
    }


def changes_at(seen: Seen, job: Job) -> float | None:
    """When the job made of that is another one by the passing of time alone."""
    memory, now = seen.memory, seen.now
    times = [job.held_until, job.keeps_until, memory.unsuspendable_until, memory.unsavable_until]
    times += _saves_at(seen).values() if job.has_store else ()
    times += [_trespass_counts_at(memory), *(until for until, _ in memory.refused_by.values())]
    if job.behind and (refused := _failed_start(memory, seen.limit, now)) is not None:
        times.append(refused.behind_until)
    return min([time for time in times if time is not None and now < time < math.inf], default=None)


def _saves_at(seen: Seen) -> Mapping[Unsaved, float]:
    """When it is so much. On its GPUs a job stands still for a save: these moments differ with each job and
    save, so that jobs do not write together, nor always when a slice or a round ends."""
    memory, usage, every = seen.memory, seen.memory.usage, seen.save_every_seconds
    if not every:
        return {}
    part = (int(seen.job.id) + int(memory.saved_seconds * 1000)) * 0.618034 % 1.0  # golden: evenly spread
    after = {Unsaved.SOME: 0.5, Unsaved.MUCH: 0.75 + part / 4, Unsaved.TOO_MUCH: 1.25 + part / 4}
    left = {how: memory.saved_seconds + share * every - usage.seconds for how, share in after.items()}
    if usage.since is None:
        return {how: -math.inf for how, seconds in left.items() if seconds <= 0}
    return {how: usage.since + seconds for how, seconds in left.items()}


def _trespass_counts_at(memory: JobMemory) -> float:
    """Not at once: what is seen in the middle of a switch may be over."""
    return math.inf if memory.trespasses_since is None else memory.trespasses_since + TRESPASS_SECONDS


def _failed_start(memory: JobMemory, limit: Limit | None, now: float) -> FailedStart | None:
    """Its own, or that of its limit: the one that counts longer."""
    own = memory.last_failed
    if limit is None or limit.failed.behind_until <= now:
        return own
    return limit.failed if own is None or own.behind_until < limit.failed.behind_until else own


def _later(time: float | None, now: float) -> float | None:
    return time if time is not None and time > now else None


def _used(allocation: GpuSet, on_nodes: Mapping[str, OnNode]) -> GpuSet:
    """The GPUs that a job uses, as its nodes say: all that Slurm gave it on nodes that do not, and where what
    they say cannot be believed."""
    blocks = {name: job for name, job in on_nodes.items() if isinstance(job, NodeJob)}
    said = frozenset(GpuId(name, ordinal) for name, job in blocks.items() for ordinal in job.gpus)
    if not said <= allocation:
        return allocation
    return said | {gpu for gpu in allocation if gpu.node not in blocks}


def _had_left(seen: Seen) -> bool:
    """Whether it was off its GPUs when it was seen last, and had been on them before."""
    return seen.memory.first_start is not None and seen.memory.usage.since is None


def _is_on(on_node: OnNode) -> bool:
    return isinstance(on_node, NodeJob) and not _is_off(on_node)


def _is_off(on_node: OnNode) -> bool:
    return isinstance(on_node, NodeJob) and on_node.phase is NodePhase.YIELDED and not on_node.trespasses


def _phase(job: ClusterJob, on_nodes: Collection[OnNode]) -> Phase:
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
    if on_nodes and all(_is_off(on_node) for on_node in on_nodes):
        return Phase.SUSPENDED if job.state is JobState.SUSPENDED else Phase.YIELDED
    phases = {on_node.phase if isinstance(on_node, NodeJob) else NodePhase.RUNNING for on_node in on_nodes}
    runs = phases == {NodePhase.RUNNING} and job.state is JobState.RUNNING
    return Phase.RUNNING if runs else Phase.STUCK
