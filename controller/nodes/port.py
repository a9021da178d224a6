# SPDX-License-Identifier: GPL-2.0-or-later
"""The node port: all that the controller asks of the agents on GPU nodes.

Adapters: `ssh` (the agent protocol of docs/interfaces.md) and `simulated`. Every method raises `NodeError`
(with the protocol's error kind) or `NodeUnreachable`, within the given deadline plus a small grace. Every
method is idempotent: after `NodeUnreachable` it may be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from typing_extensions import NotRequired, Unpack

from controller.errors import NodeError
from controller.model import JobId, value
from controller.nodes.protocol import GpuSample, Living, NodeJob, Offload, Pause, Saved


def held_on(gpu: GpuSample) -> dict[JobId | None, int]:
    """Memory on a GPU by job, in bytes. None: of processes of no job."""
    held: dict[JobId | None, int] = {}
    for process in gpu.processes:
        held[process.job_id] = held.get(process.job_id, 0) + process.memory_bytes
    return held


@value
class NodeSample:
    """All that one agent saw at one instant."""

    node: str
    time: float
    gpus: Sequence[GpuSample]
    jobs: Mapping[JobId, NodeJob]
    unconfined: str = ""
    """Why the node cannot keep jobs off GPUs that are not theirs now; empty: it can."""

    def held_bytes(self) -> Mapping[JobId, int]:
        """By job, the most memory that its processes hold on one GPU."""
        most: dict[JobId, int] = {}
        for gpu in self.gpus:
            for job_id, held_bytes in held_on(gpu).items():
                if job_id is not None:
                    most[job_id] = max(most.get(job_id, 0), held_bytes)
        return most

    def lives(self, job_id: JobId) -> bool:
        """Whether the job has ranks, or processes on a GPU."""
        ranks = self.jobs[job_id].ranks if job_id in self.jobs else ()
        return bool(ranks) or any(p.job_id == job_id for gpu in self.gpus for p in gpu.processes)


class Place(TypedDict):
    """Where a job is put on a node, and in what time."""

    gpus: Sequence[int]
    """Physical indices of the GPUs that it may use now: a part of the binding."""
    binding: Sequence[int]
    """Those that Slurm has allocated to it."""
    beside: NotRequired[frozenset[JobId]]
    """Jobs that may have memory on the same GPUs at the same time; left out: none."""
    deadline_seconds: float


class Leave(TypedDict):
    """What a job may leave on its GPUs on a node when it leaves them, and in what time."""

    residual_limit_bytes: int
    release_context: NotRequired[bool]
    """Of `offload`: whether the driver takes the CUDA context off, too; left out: no."""
    deadline_seconds: float


class NodePort(Protocol):
    """What the controller needs of the node agents."""

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The nodes there are now: Slurm node name -> address. Connections to others are closed."""

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        """Nodes, in parallel; a node that fails does not delay the others beyond the deadline. An adapter
        that knows which nodes are as they were in its answer before may leave those out."""

    async def prepare(self, node: str, job_id: JobId, *, uid: int, **place: Unpack[Place]) -> None:
        """Make the control block before the job is released. Error `gpu_busy`: a job that is not in `beside`
        has memory on one of `gpus`, or the job lives there already."""

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        """Ask all ranks of the job on this node to stop at one step boundary >= floor_step. With `sole`
        (all ranks are on this node) wait for it; on error `deadline` the request is undone."""

    async def offload(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        """Move the GPU state of all blocked ranks to host memory and check with NVML that it is gone. The
        job has left only after `stop`."""

    async def checkpoint(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        """Transparent suspend by the CUDA driver (one process on one GPU). The job has left only after
        `stop`."""

    async def save(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
        """Have all ranks of a paused job write their state into its checkpoint store. They stay blocked.
        Error `unsupported`: a session has no store; `not_cooperative`: one could not write. On every error
        the pause is undone."""

    async def stop(self, node: str, job_id: JobId, *, deadline_seconds: float) -> None:
        """Stop all processes of a job whose memory is off its GPUs (those that Slurm has not frozen yet),
        and check once more. Only then it counts as off its GPUs."""

    async def open(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        """Let a job that is off its GPUs open these, before Slurm resumes it: CUDA may start in it at once.
        Errors as of `resume`; `stop` closes them again."""

    async def resume(self, node: str, job_id: JobId, **place: Unpack[Place]) -> None:
        """Put the state back onto `gpus` and let the job go on. Also undoes a pause. Error `gpu_busy`: a job
        that is not in `beside` has memory there, or less is free than the job held before it left."""

    async def forget(self, node: str, job_id: JobId) -> None:
        """The job is over: remove its control block."""

    async def living(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Living:
        """What of a job lives on a node, control block or not."""

    async def mapped(self, node: str, job_id: JobId, *, deadline_seconds: float) -> Sequence[str]:
        """Paths of files that processes of the job have mapped on this node."""

    async def warm(self, node: str, *, uid: int, files: Sequence[str], deadline_seconds: float) -> None:
        """Have these files in the page cache of the node, as far as this user may read them."""

    async def close(self) -> None:
        """Close all connections; jobs on the nodes go on."""
