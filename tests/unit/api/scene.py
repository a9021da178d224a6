# SPDX-License-Identifier: GPL-2.0-or-later
"""A made-up cluster in mid-flight: two nodes of four GPUs, jobs in several phases, and a journal of them."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from controller.api.live import Health, LiveState
from controller.journal import JobRecord, Journal
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
)

NOW = 1_700_000_000.0
GIB = 1 << 30


def on(node: str, *ordinals: int) -> GpuSet:
    return frozenset(GpuId(node, ordinal) for ordinal in ordinals)


def job(
    job_id: int, user: str, phase: Phase, gpus: GpuSet, binding: GpuSet | None = None, **more: object
) -> Job:
    values: dict[str, object] = {
        "name": f"train-{job_id}",
        "account": "vision",
        "partition": "gpu",
        "submit_time": NOW - 1000,
        "start_time": None if phase is Phase.QUEUED else NOW - 900,
        "run_seconds": 0.0 if phase is Phase.QUEUED else 450.0,
        "gpu_seconds": 0.0 if phase is Phase.QUEUED else 450.0 * max(1, len(gpus)),
        "request": Request(gpus=max(1, len(gpus))),
        "profile": Profile(step_seconds=0.25, steps_done=1800),
        **more,
    }
    return Job(
        id=JobId(job_id),
        user=user,
        phase=phase,
        running_on=gpus,
        binding=gpus if binding is None else binding,
        **values,  # type: ignore[arg-type]
    )


def node(name: str, used: dict[int, float], **more: object) -> Node:
    gpus = tuple(
        Gpu(
            id=GpuId(name, ordinal),
            model="a100",
            memory_bytes=40 * GIB,
            memory_used_bytes=int(20 * GIB * used.get(ordinal, 0)),
            utilization_fraction=used.get(ordinal, 0.0),
            ordinary_job=JobId(900) if (name, ordinal) == ("n2", 3) else None,
            shards=16,
        )
        for ordinal in range(4)
    )
    return Node(name, gpus, **more)  # type: ignore[arg-type]


def snapshot() -> Snapshot:
    jobs = [
        job(101, "alice", Phase.RUNNING, on("n1", 0), on("n1", 0, 1, 2, 3), request=Request(1, weight=2.0)),
        job(102, "bob", Phase.SUSPENDED, on("n1", 0), on("n1", 0, 1, 2, 3)),
        job(103, "carol", Phase.RUNNING, on("n1", 1, 2)),
        job(104, "carol", Phase.STARTING, on("n2", 0, 1)),
        job(105, "dave", Phase.QUEUED, frozenset(), name="x" * 80),
    ]
    nodes = [node("n1", {0: 0.97, 1: 0.5, 2: 0.55}), node("n2", {3: 1.0})]
    return Snapshot(
        NOW,
        MappingProxyType({n.name: n for n in nodes}),
        MappingProxyType({j.id: j for j in jobs}),
        busy=frozenset({JobId(104)}),
    )


REASONS = {
    JobId(102): "waits for its turn on n1: 101 has had less of its share",
    JobId(105): "no server has 4 free GPUs",
}


def live_state() -> LiveState:
    live = LiveState()
    live.publish(
        snapshot(),
        MappingProxyType(REASONS),
        Health("gandiva", NOW - 3600, ticks=3600, tick_seconds=0.012),
    )
    return live


def write_journal(path: Path) -> None:
    with Journal(path) as journal:
        for live in snapshot().jobs.values():
            journal.upsert_job(
                JobRecord(
                    live.id,
                    live.user,
                    live.gpus,
                    live.submit_time,
                    live.name,
                    live.account,
                    live.partition,
                    live.request.weight,
                    live.start_time,
                    None,
                    "PENDING" if live.phase is Phase.QUEUED else "RUNNING",
                    suspends=3,
                    moves=1,
                )
            )
        journal.upsert_job(
            JobRecord(
                JobId(100), "alice", 2, NOW - 9000, "done", "vision", "gpu", 1.0, NOW - 8000, NOW - 4400,
                "COMPLETED", exit_code=0, step_seconds=0.125,
            )
        )  # fmt: skip
        journal.open_slice(JobId(100), on("n1", 0, 1), NOW - 8000)
        journal.close_slice(JobId(100), NOW - 6200, "its slice is over")
        journal.record_decision(NOW - 6200, JobId(100), "suspend", "its slice is over", on("n1", 0, 1))
        journal.record_event(NOW - 6200, JobId(100), "n1", "suspended", "left 0 bytes on n1:0 n1:1")
        journal.record_event(NOW - 100, None, "n2", "node_lost", "its agent does not answer")
