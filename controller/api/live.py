# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop shows to the API: one immutable object, swapped at each tick.

Publishing costs the loop nothing; turning it into JSON is done by the thread of the client that asks, once
per tick at most.
"""

from __future__ import annotations

import threading
import time as clock
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.messages import (
    FailedSuspendsMessage,
    GpuMessage,
    GpusMessage,
    LiveJobMessage,
    NodeMessage,
)
from controller.model import ALLOCATED, ON_GPU, Gpu, GpuId, Job, JobId, Node, Snapshot


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
    """What is wrong now, one sentence each; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was published last."""

    snapshot: Snapshot
    reasons: Mapping[JobId, str]
    health: Health
    turned: float
    """When the turn that it shows was complete, by the monotonic clock."""

    @property
    def age_seconds(self) -> float:
        """Time since the last complete turn of the loop."""
        return clock.monotonic() - self.turned


class LiveState:
    """The place where the loop leaves it and the API takes it."""

    def __init__(self) -> None:
        self._published: Published | None = None
        self.standby = ""
        """Why this controller waits instead of leading; empty: it leads, or is about to."""
        self._lock = threading.Lock()
        self._built: tuple[Published, GpusMessage] | None = None

    def publish(
        self,
        snapshot: Snapshot,
        reasons: Mapping[JobId, str],
        health: Health,
        *,
        turned: float | None = None,
    ) -> None:
        """Show this from now on. Nothing that is passed may change later. `turned`: when this turn of the
        loop was complete, by the monotonic clock (default: now)."""
        self.standby = ""
        self._published = Published(
            snapshot, reasons, health, clock.monotonic() if turned is None else turned
        )

    def stand_by(self, why: str) -> None:
        """This controller does not lead: what it published is out of date."""
        self._published = None
        self.standby = why

    @property
    def latest(self) -> Published | None:
        """What was published last; None before the first turn of the loop."""
        return self._published

    def gpus(self) -> GpusMessage | None:
        """The answer of `/v1/gpus`, made once per tick however many ask."""
        published = self._published
        if published is None:
            return None
        with self._lock:
            if self._built is None or self._built[0] is not published:
                self._built = (published, _gpus(published))
            return self._built[1]


def live_job(job: Job, published: Published) -> LiveJobMessage:
    """One job as the API shows it."""
    return LiveJobMessage(
        job_id=job.id,
        user=job.user,
        name=job.name,
        account=job.account,
        partition=job.partition,
        phase=job.phase.value,
        gpus=job.gpus,
        weight=job.request.weight,
        priority_class=job.priority_class,
        binding=[str(gpu) for gpu in sorted(job.binding)],
        running_on=[str(gpu) for gpu in sorted(job.running_on)] if job.phase in ON_GPU else [],
        submit_time=job.submit_time,
        start_time=job.start_time,
        run_seconds=job.run_seconds,
        gpu_seconds=job.gpu_seconds,
        left_on=_left_on(job, published.snapshot),
        movable=job.movable,
        suspendable=job.suspendable,
        failed_suspends=failed_suspends(job),
        steps_done=job.profile.steps_done,
        step_seconds=job.profile.step_seconds,
        busy=job.id in published.snapshot.busy,
        reason=published.reasons.get(job.id, ""),
    )


def failed_suspends(job: Job) -> FailedSuspendsMessage | None:
    """Why a job cannot be suspended, as the API shows it."""
    failed = job.failed_suspends
    if failed is None:
        return None
    return FailedSuspendsMessage(
        tries=failed.tries, since=failed.since, why=failed.why, way_out=failed.way_out.value
    )


def _left_on(job: Job, snapshot: Snapshot) -> dict[str, int]:
    if job.phase in ON_GPU or not job.binding:
        return {}
    nodes = [snapshot.nodes[name] for name in sorted({gpu.node for gpu in job.binding} & set(snapshot.nodes))]
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
    """Per GPU the jobs that are on it, and those that are bound to it and wait."""
    running: dict[GpuId, list[int]] = {}
    waiting: dict[GpuId, list[int]] = {}
    for job in snapshot.jobs.values():
        if job.phase in ON_GPU:
            for gpu in job.running_on:
                running.setdefault(gpu, []).append(job.id)
        elif job.phase in ALLOCATED:
            for gpu in job.binding:
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
                GpuMessage(
                    ordinal=gpu.id.ordinal,
                    model=gpu.model,
                    memory_bytes=gpu.memory_bytes,
                    memory_used_bytes=gpu.memory_used_bytes,
                    utilization_fraction=gpu.utilization_fraction,
                    healthy=gpu.healthy,
                    ordinary_job=gpu.ordinary_job,
                    shards=gpu.shards,
                    running=sorted(running.get(gpu.id, [])),
                    waiting=sorted(waiting.get(gpu.id, [])),
                    left_by={int(job_id): size for job_id, size in gpu.left_by},
                )
                for gpu in node.gpus
            ],
        )
        for node in snapshot.nodes.values()
    ]
    jobs = [live_job(job, published) for job in sorted(snapshot.jobs.values(), key=lambda job: job.id)]
    return GpusMessage(time=snapshot.time, nodes=nodes, jobs=jobs)
