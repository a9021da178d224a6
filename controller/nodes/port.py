# SPDX-License-Identifier: GPL-2.0-or-later
"""The node port: all that the controller asks of the agents on GPU nodes.

Adapters: `ssh` (the agent protocol of docs/interfaces.md) and `simulated`. Every method raises `NodeError`
(with the protocol's error kind) or `NodeUnreachable`, within the given deadline plus a small grace. Every
method is idempotent: after `NodeUnreachable` it may be repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from controller.errors import NodeError
from controller.frozen import quickly_made
from controller.model import JobId


class RankState(str, enum.Enum):
    """State of one session (interfaces.md section 3)."""

    RUNNING = "running"
    BLOCKED = "blocked"
    OFFLOADED = "offloaded"
    RESTORING = "restoring"
    FAILED = "failed"
    FINISHED = "finished"


class NodePhase(str, enum.Enum):
    """What a job is doing on one node, as the agent knows it."""

    __hash__ = str.__hash__  # (An enumeration's own is written in Python, and sets of members ask for it.)

    RUNNING = "running"
    PAUSING = "pausing"
    YIELDED = "yielded"
    FAILED = "failed"


@quickly_made
@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process holding memory on a GPU."""

    pid: int
    job_id: JobId | None
    uid: int
    memory_bytes: int


@quickly_made
@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one instant."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    memory_used_bytes: int
    utilization_fraction: float
    healthy: bool
    processes: tuple[GpuProcess, ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True)
class RankSample:
    """One session."""

    rank: int
    state: RankState
    steps_done: int
    samples_done: float
    step_seconds: float
    world_size: int
    state_bytes: int
    largest_tensor_bytes: int
    error: str = ""


@quickly_made
@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job's control block on one node."""

    job_id: JobId
    phase: NodePhase
    gpus: tuple[int, ...]
    """GPUs it uses, or used last."""
    ranks: tuple[RankSample, ...] = ()
    left_bytes: int = 0
    movable: bool = False
    error: str = ""
    trespasses: tuple[int, ...] = ()
    """GPUs on which it has more memory than it may have there now: off them, or never allowed on them."""


@quickly_made
@dataclass(frozen=True, slots=True)
class NodeSample:
    """All that one agent saw at one instant."""

    node: str
    time: float
    gpus: Sequence[GpuSample]
    jobs: Mapping[JobId, NodeJob]
    changed: Collection[JobId] | None = None
    """Jobs whose control blocks are not as in the sample before. None: not known."""

    def memory_bytes_of(self, job_id: JobId) -> int:
        """The most memory that the job's processes hold on one GPU."""
        most_bytes = 0
        for gpu in self.gpus:
            held_bytes = 0
            for process in gpu.processes:
                if process.job_id == job_id:
                    held_bytes += process.memory_bytes
            most_bytes = max(most_bytes, held_bytes)
        return most_bytes

    def living(self, job_ids: Set[JobId]) -> set[JobId]:
        """Of these jobs those with ranks, or with processes on a GPU."""
        found = {job_id for job_id, job in self.jobs.items() if job.ranks and job_id in job_ids}
        for gpu in self.gpus:
            found.update(p.job_id for p in gpu.processes if p.job_id is not None and p.job_id in job_ids)
        return found


@dataclass(frozen=True, slots=True)
class Living:
    """Answer of `living`."""

    processes: int
    """Processes of the job on the node, Slurm's own for it included."""
    booted_at: float
    """When the node (or the container that is one) was started, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Answer of `pause`."""

    target_step: int
    all_blocked: bool
    ranks: tuple[RankSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Offload:
    """Answer of `offload` and `checkpoint`: the job's memory is off the GPUs of this node."""

    left_bytes: int
    seconds: float
    stopped_step: int | None = None
    empty: bool = False
    """It had no process on any GPU."""
    left_on: Mapping[int, int] = field(default_factory=dict)
    """`left_bytes` by GPU index."""


class NodePort(Protocol):
    """What the controller needs of the node agents."""

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The nodes there are now: Slurm node name -> address. Connections to others are closed."""
        ...

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        """Every node, in parallel; a node that fails does not delay the others beyond the deadline."""
        ...

    async def prepare(
        self,
        node: str,
        job_id: JobId,
        *,
        uid: int,
        gpus: Sequence[int],
        binding: Sequence[int],
        deadline_seconds: float,
    ) -> None:
        """Make the control block before the job is released; `gpus` of its `binding` (physical indices)
        are the ones it may use now. Error `gpu_busy`: another job's memory is on one of them, or the job
        lives there already."""
        ...

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        """Ask all ranks of the job on this node to stop at one step boundary >= floor_step. With `sole`
        (all ranks are on this node) wait for it; on error `deadline` the request is undone."""
        ...

    async def offload(
        self,
        node: str,
        job_id: JobId,
        *,
        residual_limit_bytes: int,
        release_context: bool,
        deadline_seconds: float,
    ) -> Offload:
        """Move the GPU state of all blocked ranks to host memory and check with NVML that it is gone. The
        job has left only after `stop`."""
        ...

    async def checkpoint(
        self, node: str, job_id: JobId, *, residual_limit_bytes: int, deadline_seconds: float
    ) -> Offload:
        """Transparent suspend by the CUDA driver (one process on one GPU). The job has left only after
        `stop`."""
        ...

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        """Stop all processes of a job whose memory is off its GPUs (those that Slurm has not frozen yet),
        and check once more. Only then it counts as off its GPUs."""
        ...

    async def resume(
        self,
        node: str,
        job_id: JobId,
        *,
        gpus: Sequence[int],
        binding: Sequence[int],
        deadline_seconds: float,
    ) -> None:
        """Put the state back onto `gpus` and let the job go on. Also undoes a pause. Error `gpu_busy`."""
        ...

    async def forget(self, node: str, job_id: JobId) -> None:
        """The job is over: remove its control block."""
        ...

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Living:
        """What of a job lives on a node, control block or not."""
        ...

    async def close(self) -> None:
        """Close all connections; jobs on the nodes go on."""
        ...
