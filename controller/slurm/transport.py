# SPDX-License-Identifier: GPL-2.0-or-later
"""What one way of talking to Slurm must be able to do; `SlurmCluster` makes the cluster port out of it. A
call raises `ClusterUnavailable`, `ClusterRefused` or `UnknownJob`, and ends at once when it is cancelled,
however slurmctld hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.model import GpuId, JobId
from controller.slurm.gres import BoundRequest
from controller.slurm.raw import JobRecord, NodeRecord


@dataclass(frozen=True, slots=True)
class Load:
    """One look at Slurm."""

    jobs: tuple[JobRecord, ...]
    """Gandiva jobs, also those that ended recently."""
    nodes: tuple[NodeRecord, ...]
    whole_gpu_jobs: dict[GpuId, JobId]
    """GPUs that running jobs hold as GRES `gpu`, as far as Slurm tells which."""


@dataclass(frozen=True, slots=True)
class BindChange:
    """Turn a pending job's request into a binding, to start as soon as it is released."""

    request: BoundRequest
    resize: bool
    """Whether its number of nodes must change to that of the binding, and a request of GPUs per
    job must go."""


@dataclass(frozen=True, slots=True)
class UnbindChange:
    """Turn it back into what its user asked for."""

    gres: str
    """Per node; empty: see `gpus_per_job`."""
    gpus_per_job: int | None
    required_nodes: str
    """Empty: anywhere."""
    nodes: int | None
    """None: leave it."""


class Transport(Protocol):
    """A way of talking to slurmctld."""

    async def load(self) -> Load: ...

    async def job(self, job_id: JobId) -> JobRecord:
        """One job, freshly. Raises UnknownJob."""
        ...

    async def bind(self, job_id: JobId, change: BindChange) -> None:
        """Change the request of a pending job and set its begin time to now."""
        ...

    async def unbind(self, job_id: JobId, change: UnbindChange) -> None:
        """Change the request of a pending job back."""
        ...

    async def release(self, job_id: JobId) -> None:
        """Undo any hold."""
        ...

    async def hold(self, job_id: JobId) -> None:
        """Hold as Gandiva's own holds are (reason JobHeldUser). slurmctld accepts this for running
        jobs too."""
        ...

    async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
        """Give these held tasks of an array records, and job ids, of their own. Not the last ones:
        asked for all the tasks of a record, Slurm leaves them together."""
        ...

    async def suspend(self, job_id: JobId) -> None: ...

    async def resume(self, job_id: JobId) -> None: ...

    async def requeue_hold(self, job_id: JobId) -> None:
        """Stop a running job and put it back, held. Does nothing to a job that does not run."""
        ...

    async def end(self, job_id: JobId, reason: str) -> None:
        """Write the reason behind the job's comment and cancel the job."""
        ...

    async def close(self) -> None: ...
