# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop publishes for the API: one object, replaced at each turn.

Publishing costs the loop nothing; the JSON is made by the thread of the client that asks, once per turn at
most."""

from __future__ import annotations

import threading
import time as clock
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.messages import (
    GpuMessage,
    GpusMessage,
    LiveJobMessage,
    NodeMessage,
)
from controller.loop.loop import Turn
from controller.model import ALLOCATED, ON_GPU, Gpu, GpuId, Job, Node, Phase, Snapshot
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuSample, RankSample


@dataclass(frozen=True, slots=True)
class Health:
    """How the loop is doing."""

    policy: str
    started: float
    """When the daemon started."""
    ticks: int = 0
    tick_seconds: float = 0.0
    """Time the last turn took, without its pause."""
    problems: tuple[str, ...] = ()
    """What is wrong now, one sentence each."""


@dataclass(frozen=True, slots=True)
class Published:
    turn: Turn
    health: Health
    completed: float
    """When the turn was complete, by the monotonic clock."""

    @property
    def snapshot(self) -> Snapshot:
        return self.turn.snapshot

    @property
    def age_seconds(self) -> float:
        """Time since the last complete turn of the loop."""
        return clock.monotonic() - self.completed

    def ranks(self, job: Job) -> list[RankSample]:
        """The sessions of a job, as its nodes saw them last."""
        samples = [self.turn.samples.get(name) for name in {gpu.node for gpu in job.placement.allocation}]
        on_nodes = [sample.jobs.get(job.id) for sample in samples if isinstance(sample, NodeSample)]
        return [rank for on_node in on_nodes if on_node is not None for rank in on_node.ranks]

    def gpus(self, node: Node) -> list[tuple[Gpu, GpuSample | None]]:
        """The GPUs of a node, each with what its agent saw last."""
        sample = self.turn.samples.get(node.name)
        seen = {gpu.index: gpu for gpu in sample.gpus} if isinstance(sample, NodeSample) else {}
        return [(gpu, seen.get(gpu.id.ordinal)) for gpu in node.gpus]


class LiveState:
    """The last published turn, between the loop's thread and those of the API."""

    def __init__(self) -> None:
        self._published: Published | None = None
        self.standby = ""
        """Why this controller waits instead of leading; empty: it leads, or is about to."""
        self._lock = threading.Lock()
        self._built: tuple[Published, GpusMessage] | None = None

    def publish(self, turn: Turn, health: Health, *, completed: float | None = None) -> None:
        """Show this from now on; nothing in it may change later. `completed`: when the turn was complete, by
        the monotonic clock (default: now)."""
        self.standby = ""
        self._published = Published(turn, health, clock.monotonic() if completed is None else completed)

    def stand_by(self, why: str) -> None:
        """This controller does not lead: what it published is out of date."""
        self._published = None
        self.standby = why

    @property
    def latest(self) -> Published | None:
        """What was published last; None before the first turn of the loop."""
        return self._published

    def gpus(self) -> GpusMessage | None:
        """The answer of `/v1/gpus`, made once per turn however many ask."""
        published = self._published
        if published is None:
            return None
        with self._lock:
            if self._built is None or self._built[0] is not published:
                self._built = (published, _gpus(published))
            return self._built[1]


def live_job(job: Job, published: Published) -> LiveJobMessage:
    snapshot, ranks = published.snapshot, published.ranks(job)
    usage, placement = snapshot.usage_of(job.id), job.placement
    return LiveJobMessage.of(
        job,
        job_id=job.id,
        phase=job.phase.value,
        gpus=job.gpus,
        weight=job.request.weight,
        binding=[str(gpu) for gpu in sorted(placement.allocation)],
        running_on=[str(gpu) for gpu in sorted(placement.gpus)],
        shares_with=sorted(placement.shares_with),
        run_seconds=usage.ran(snapshot.time),
        gpu_seconds=usage.served(snapshot.time),
        left_on=_left_on(job, snapshot),
        movable=job.may_move,
        suspendable=job.may_stop or job.phase is not Phase.RUNNING or job.switching,
        steps_done=max((rank.steps_done for rank in ranks), default=0),
        step_seconds=step_seconds(job, published),
        busy=job.switching,
        reason=published.turn.reasons.get(job.id, ""),
    )


def step_seconds(job: Job, published: Published) -> float | None:
    """Median time of a mini-batch on its slowest rank. None: not known yet."""
    return max((rank.step_seconds for rank in published.ranks(job)), default=0.0) or None


def _left_on(job: Job, snapshot: Snapshot) -> dict[str, int]:
    if job.placement.gpus:
        return {}
    names = sorted({gpu.node for gpu in job.placement.allocation} & snapshot.nodes.keys())
    nodes = [snapshot.nodes[name] for name in names]
    return {
        str(gpu.id): size for node in nodes for gpu in node.gpus for by, size in gpu.left_by if by == job.id
    }


def use_of(gpu: Gpu, node: Node, running: Mapping[GpuId, list[int]]) -> str:
    """`running`, `ordinary`, `unavailable` or `idle`."""
    if running.get(gpu.id):
        return "running"
    if gpu.ordinary_job is not None:
        return "ordinary"
    return "idle" if node.available and gpu.healthy else "unavailable"


def jobs_on_gpus(snapshot: Snapshot) -> tuple[dict[GpuId, list[int]], dict[GpuId, list[int]]]:
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


def uses(snapshot: Snapshot) -> Counter[str]:
    """How many GPUs are put to which use."""
    running, _ = jobs_on_gpus(snapshot)
    return Counter(use_of(gpu, node, running) for node in snapshot.nodes.values() for gpu in node.gpus)


def _gpus(published: Published) -> GpusMessage:
    snapshot = published.snapshot
    running, waiting = jobs_on_gpus(snapshot)
    nodes = [
        NodeMessage(
            name=node.name,
            available=node.available,
            reason=node.reason,
            gpus=[
                GpuMessage.of(
                    gpu,
                    ordinal=gpu.id.ordinal,
                    memory_used_bytes=None if seen is None else seen.memory_used_bytes,
                    utilization_fraction=None if seen is None else seen.utilization_fraction,
                    running=sorted(running.get(gpu.id, [])),
                    waiting=sorted(waiting.get(gpu.id, [])),
                    left_by=dict(gpu.left_by),
                )
                for gpu, seen in published.gpus(node)
            ],
        )
        for node in snapshot.nodes.values()
    ]
    jobs = [live_job(job, published) for job in sorted(snapshot.jobs.values(), key=lambda job: job.id)]
    return GpusMessage(time=snapshot.time, nodes=nodes, jobs=jobs)
