# SPDX-License-Identifier: GPL-2.0-or-later
"""A job of the simulated cluster: what Slurm knows of it, and how far its work has got."""

import asyncio
import json
import math
from dataclasses import dataclass
from functools import lru_cache

from controller.cluster.port import ClusterJob, JobState
from controller.cluster.raw import PREFIX, trial_word
from controller.model import GpuSet, JobId

PARTITION = "gpu"
"""The one that all nodes and jobs are in, where nobody says otherwise."""


@dataclass(slots=True)
class SimulatedJob:
    id: JobId
    user: str
    request: str
    work_seconds: float
    """Time on its GPUs until it ends by itself."""
    submit_time: float
    uid: int = 2001
    account: str = "research"
    qos: str = "normal"
    partition: str = PARTITION
    """Several with commas between. Empty: any."""
    reason: str = ""
    """Slurm's, while it is pending and not held."""
    state: JobState = JobState.PENDING
    state_name: str = "PENDING"
    held: bool = True
    eligible: bool = True
    binding: GpuSet = frozenset()
    """What Slurm gave it."""
    nodes: tuple[str, ...] = ()
    """Those of the binding."""
    wanted: GpuSet = frozenset()
    """What it is bound to ask for."""
    start_time: float | None = None
    end_time: float | None = None
    suspended_at: float = 0.0
    """The last time."""
    deadline_at: float | None = None
    restart_count: int = 0
    requeue: bool = True
    """False: `--no-requeue`."""
    comment: str = ""
    exit_code: int = 0
    """What its script returns when its work is done."""
    name: str = ""
    state_bytes: int = 2**30
    largest_tensor_bytes: int = 2**28
    checkpoint_seconds: float = 0.0
    """Writing its checkpoint, before it is requeued."""
    restart_seconds: float = 0.0
    """On its GPUs after a requeue, before it makes progress again."""
    overhead_seconds: float = 0.0
    """What is left of such time."""
    steps_per_second: float = 1.0
    """Mini-batches in a second of work at rate 1."""
    rate: float = 1.0
    """Progress per second on the GPUs it has now."""
    done_seconds: float = 0.0
    """Of `work_seconds`, up to `working_since`."""
    working_since: float | None = None
    memory_per_node_bytes: int = 0
    end_timer: asyncio.TimerHandle | None = None
    allowed_seconds: float = math.inf
    """Of work at rate 1: what it may do until `Progress` allows more."""

    def stop_work(self, now: float) -> None:
        """Account for the work done until now; it makes no progress from now on."""
        if self.working_since is not None:
            worked = now - self.working_since
            overhead = min(worked, self.overhead_seconds)
            self.overhead_seconds -= overhead
            self.done_seconds += min((worked - overhead) * self.rate, self.allowed_seconds)
            self.working_since = None
        if self.end_timer is not None:
            self.end_timer.cancel()
            self.end_timer = None

    def begin_work(self, now: float, rate: float) -> float:
        """It makes progress at this rate from now on; returns when its work is done."""
        self.working_since, self.rate = now, rate
        left_seconds = max(0.0, self.work_seconds - self.done_seconds)
        return now + self.overhead_seconds + left_seconds / rate if rate > 0 else math.inf

    def done_at(self, now: float) -> float:
        """Work done up to now, in seconds at rate 1."""
        if self.working_since is None:
            return self.done_seconds
        worked = max(0.0, now - self.working_since - self.overhead_seconds)
        return self.done_seconds + min(worked * self.rate, self.allowed_seconds)

    def view(self, *, tells_duration: bool) -> ClusterJob:
        """As the port says it. `tells_duration`: with the time that it needs."""
        return ClusterJob(
            id=self.id,
            user=self.user,
            uid=self.uid,
            name=self.name or f"job{self.id}",
            account=self.account,
            partition=self.partition,
            qos=self.qos,
            state=self.state,
            state_name=self.state_name,
            reason="JobHeldUser" if self.held else self.reason or "None",
            held=self.held,
            user_hold=False,
            eligible=self.eligible,
            request=self.request,
            trial=trial_word(self.comment),
            submit_time=self.submit_time,
            start_time=self.start_time,
            end_time=self.end_time,
            deadline_at=self.deadline_at,
            binding=frozenset() if self.state is JobState.PENDING else self.binding,
            exclusive_gpus=False,
            nodes=self.nodes,
            cpus_per_node=1,
            memory_per_node_bytes=self.memory_per_node_bytes,
            restart_count=self.restart_count,
            excluded_nodes=frozenset(),
            exit_code=self.exit_code if self.state is JobState.ENDED else 0,
            may_requeue=self.requeue,
            duration_seconds=self.work_seconds if tells_duration else None,
        )


@lru_cache(maxsize=4096)
def request_text(
    gpus: int = 1,
    *,
    nodes: int | None = 1,
    weight: float = 1.0,
    **wishes: str | bool | int | tuple[str, ...] | None,
) -> str:
    """An `admin_comment` as the job_submit module writes it. `wishes`: by their keys there; None and an empty
    tuple are none."""
    message: dict[str, object] = {"v": 1, "gpus_per_node": None, "weight": weight}
    message |= {"gpus_per_node": gpus // nodes, "nodes": nodes} if nodes else {"gpus": gpus}
    message |= {name: wish for name, wish in wishes.items() if wish not in (None, ())}
    return PREFIX + json.dumps(message, separators=(",", ":"))
