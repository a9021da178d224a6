# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop publishes for the API: one object, replaced at each cycle.

Publishing costs the loop nothing; the JSON is made by the thread of the client that asks, once per cycle at
most."""

import time as clock
from dataclasses import dataclass
from functools import cached_property

from controller.api.messages import GpuMessage, GpusMessage, LiveJobMessage, NodeMessage
from controller.loop.loop import Cycle
from controller.model import ALLOCATED, ON_GPU, GpuId, Job, Phase, Snapshot, reason_of
from controller.nodes.port import NodeSample


@dataclass(frozen=True, slots=True)
class Health:
    policy: str
    started: float
    """When the daemon started."""
    ticks: int = 0
    tick_seconds: float = 0.0
    """Time the last cycle took, without its pause."""
    problems: tuple[str, ...] = ()
    """What is wrong now, one sentence each."""


@dataclass(frozen=True)
class Published:
    cycle: Cycle
    health: Health
    completed: float
    """When the cycle was complete, by the monotonic clock."""

    @property
    def age_seconds(self) -> float:
        """Time since the last complete cycle of the loop."""
        return clock.monotonic() - self.completed

    @cached_property
    def message(self) -> GpusMessage:
        """The answer of `/v1/gpus`, but for what changes between cycles."""
        return _gpus(self)

    @cached_property
    def jobs(self) -> dict[int, LiveJobMessage]:
        return {job.job_id: job for job in self.message.jobs}


class LiveState:
    """The last published cycle, between the loop's thread and those of the API."""

    def __init__(self) -> None:
        self.latest: Published | None = None
        """What was published last; None before the first cycle of the loop."""
        self.standby = ""
        """Why this controller waits instead of leading; empty: it leads, or is about to."""

    def publish(self, cycle: Cycle, health: Health, *, completed: float | None = None) -> None:
        """Show this from now on; nothing in it may change later. `completed`: when the cycle was complete, by
        the monotonic clock (default: now)."""
        self.standby = ""
        self.latest = Published(cycle, health, clock.monotonic() if completed is None else completed)

    def stand_by(self, why: str) -> None:
        """This controller does not lead: what it published is out of date."""
        self.latest = None
        self.standby = why


def _job(job: Job, published: Published) -> LiveJobMessage:
    snapshot, samples = published.cycle.snapshot, published.cycle.samples
    usage, placement = snapshot.usage_of(job.id), job.placement
    on_nodes = [samples.get(name) for name in {gpu.node for gpu in placement.allocation}]
    parts = [sample.jobs.get(job.id) for sample in on_nodes if isinstance(sample, NodeSample)]
    ranks = [rank for part in parts if part is not None for rank in part.ranks]
    moved, why = published.cycle.moved.get(job.id), published.cycle.reasons.get(job.id, "")
    own = [snapshot.gpu(gpu) for gpu in sorted(placement.allocation)]
    return LiveJobMessage.of(
        job,
        job_id=job.id,
        phase=job.phase.value,
        gpus=job.gpus,
        asked_gpus=job.request.size.wanted,
        weight=job.request.weight,
        binding=[str(gpu) for gpu in sorted(placement.allocation)],
        running_on=[str(gpu) for gpu in sorted(placement.gpus)],
        shares_with=sorted(placement.shares_with),
        run_seconds=usage.ran(snapshot.time),
        gpu_seconds=usage.served(snapshot.time),
        bad_gpus={str(gpu.id): gpu.reason for gpu in own if gpu is not None and not gpu.healthy},
        left_on=_left_on(job, snapshot),
        movable=job.may_move,
        suspendable=job.may_stop or job.phase is not Phase.RUNNING or job.switching,
        steps_done=max((rank.steps_done for rank in ranks), default=0),
        step_seconds=max((rank.step_seconds for rank in ranks), default=0.0) or None,
        busy=job.switching,
        reason=why,
        reason_code=reason_of(why).value,
        **({} if moved is None else {"move": moved.move, "verdict": moved.verdict.value, "gain": moved.gain}),
    )


def _left_on(job: Job, snapshot: Snapshot) -> dict[str, int]:
    if job.placement.gpus:
        return {}
    names = sorted({gpu.node for gpu in job.placement.allocation} & snapshot.nodes.keys())
    gpus = [gpu for name in names for gpu in snapshot.nodes[name].gpus]
    return {str(gpu.id): size for gpu in gpus for by, size in gpu.left_by if by == job.id}


def _jobs_on_gpus(snapshot: Snapshot) -> tuple[dict[GpuId, list[int]], dict[GpuId, list[int]]]:
    """Per GPU the jobs that are on it, and those that have it in their allocation and wait."""
    running: dict[GpuId, list[int]] = {}
    waiting: dict[GpuId, list[int]] = {}
    for job in snapshot.jobs.values():
        if job.phase in ON_GPU:
            for gpu in job.placement.gpus:
                running.setdefault(gpu, []).append(job.id)
        elif job.phase in ALLOCATED:
            for gpu in job.placement.allocation:
                waiting.setdefault(gpu, []).append(job.id)
    return running, waiting


def _gpus(published: Published) -> GpusMessage:
    snapshot = published.cycle.snapshot
    running, waiting = _jobs_on_gpus(snapshot)
    nodes: list[NodeMessage] = []
    for node in snapshot.nodes.values():
        sample = published.cycle.samples.get(node.name)
        seen = {gpu.index: [gpu] for gpu in sample.gpus} if isinstance(sample, NodeSample) else {}
        gpus = [
            GpuMessage.of(
                *seen.get(gpu.id.ordinal, ()),
                gpu,
                ordinal=gpu.id.ordinal,
                running=sorted(running.get(gpu.id, [])),
                waiting=sorted(waiting.get(gpu.id, [])),
                left_by=dict(gpu.left_by),
            )
            for gpu in node.gpus
        ]
        nodes.append(NodeMessage.of(node, gpus=gpus))
    jobs = [_job(job, published) for job in sorted(snapshot.jobs.values(), key=lambda job: job.id)]
    return GpusMessage(time=snapshot.time, nodes=nodes, jobs=jobs)
