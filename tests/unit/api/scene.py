# SPDX-License-Identifier: GPL-2.0-or-later
"""A made-up cluster in mid-flight: two nodes of four GPUs, jobs in several phases, and a journal of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from controller.api.live import Health, LiveState
from controller.journal import JobRecord, Journal
from controller.loop.loop import Cycle
from controller.model import (
    ON_GPU,
    Gpu,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Memory,
    Moved,
    Node,
    Phase,
    Placement,
    Plan,
    Reason,
    Request,
    Size,
    Snapshot,
    Usage,
    Why,
)
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuSample, NodeJob, NodePhase, RankSample, RankState
from controller.observe.node_cache import Sample

NOW = 1_700_000_000.0
GIB = 1 << 30


def on(node: str, *ordinals: int) -> GpuSet:
    return frozenset(GpuId(node, ordinal) for ordinal in ordinals)


def job(
    job_id: int,
    user: str,
    phase: Phase,
    gpus: GpuSet,
    allocation: GpuSet | None = None,
    *,
    request: Request | None = None,
    **more: object,
) -> Job:
    """`gpus`: those it is on, or was on last."""
    values: dict[str, object] = {
        "name": f"train-{job_id}",
        "account": "vision",
        "partition": "gpu",
        "submit_time": NOW - 1000,
        "start_time": None if phase is Phase.QUEUED else NOW - 900,
        **more,
    }
    return Job(
        id=JobId(job_id),
        user=user,
        phase=phase,
        request=request or Request(size=Size.exactly(max(1, len(gpus)))),
        placement=Placement(
            gpus if phase in ON_GPU else frozenset(), gpus if allocation is None else allocation
        ),
        last=gpus,
        may_start=phase in (Phase.QUEUED, Phase.SUSPENDED, Phase.YIELDED),
        may_stop=phase is Phase.RUNNING,
        switching=phase is Phase.STARTING,
        **values,  # type: ignore[arg-type]
    )


USED: dict[str, dict[int, float]] = {"n1": {0: 0.97, 1: 0.5, 2: 0.55}, "n2": {3: 1.0}}
"""How busy GPUs are, by node."""


def node(name: str, **more: object) -> Node:
    gpus = tuple(
        Gpu(
            id=GpuId(name, ordinal),
            model="a100",
            memory_bytes=40 * GIB,
            ordinary_job=JobId(900) if (name, ordinal) == ("n2", 3) else None,
            shards=16,
        )
        for ordinal in range(4)
    )
    return Node(name=name, gpus=gpus, **more)  # type: ignore[arg-type]


def snapshot() -> Snapshot:
    weighted = Request(size=Size.exactly(1), weight=2.0)
    jobs = [
        job(101, "alice", Phase.RUNNING, on("n1", 0), on("n1", 0, 1, 2, 3), request=weighted),
        job(102, "bob", Phase.SUSPENDED, on("n1", 0), on("n1", 0, 1, 2, 3)),
        job(103, "carol", Phase.RUNNING, on("n1", 1, 2)),
        job(104, "carol", Phase.STARTING, on("n2", 0, 1)),
        job(105, "dave", Phase.QUEUED, frozenset(), name="x" * 80),
    ]
    nodes = [node("n1"), node("n2")]
    return Snapshot(
        time=NOW,
        nodes=MappingProxyType({n.name: n for n in nodes}),
        jobs=MappingProxyType({j.id: j for j in jobs}),
        usage=MappingProxyType({j.id: usage(j) for j in jobs if j.start_time is not None}),
    )


def usage(of: Job) -> Usage:
    """450 s on its GPUs in all, the last 50 of them in a slice that goes on."""
    gpus = len(of.last)
    if of.phase not in ON_GPU:
        return Usage(seconds=450.0, gpu_seconds=450.0 * gpus)
    return Usage(seconds=400.0, gpu_seconds=400.0 * gpus, since=NOW - 50, gpus=gpus)


def samples(of: Snapshot) -> dict[str, Sample]:
    """What the nodes say of the jobs on them: 1,800 steps of a quarter of a second."""
    rank = RankSample(0, RankState.RUNNING, 1800, 57600.0, 0.25, 1, GIB, GIB)
    found: dict[str, Sample] = {}
    for name in of.nodes:
        here = [j for j in of.jobs.values() if name in {gpu.node for gpu in j.placement.allocation}]
        jobs = {j.id: NodeJob(j.id, NodePhase.RUNNING, (), (rank,)) for j in here}
        found[name] = NodeSample(name, of.time, [gpu_sample(gpu) for gpu in of.nodes[name].gpus], jobs)
    return found


def gpu_sample(gpu: Gpu) -> GpuSample:
    """What the agent says of this GPU."""
    busy = USED.get(gpu.id.node, {}).get(gpu.id.ordinal, 0.0)
    used_bytes = int(20 * GIB * busy)
    return GpuSample(gpu.id.ordinal, f"GPU-{gpu.id}", gpu.model, gpu.memory_bytes, used_bytes, busy, True)


SLICE_OVER = Why(Reason.TURN_OVER, "its slice is over")
REASONS = {
    JobId(102): Why(Reason.WAITS_FOR_TURN, "waits for its turn on n1: 101 has had less of its share"),
    JobId(105): "no node has 4 free GPUs",
}


def cycle(
    of: Snapshot | None = None,
    reasons: Mapping[JobId, str] = MappingProxyType({}),
    moved: Mapping[JobId, Moved] = MappingProxyType({}),
) -> Cycle:
    """A cycle of the loop that saw this."""
    seen = of or snapshot()
    return Cycle(
        snapshot=seen,
        plan=Plan({}),
        actions=(),
        samples=samples(seen),
        reasons=reasons,
        moved=moved,
        memory=Memory(),
        observe_seconds=0.011,
        plan_seconds=0.001,
    )


def live_state() -> LiveState:
    live = LiveState()
    live.publish(cycle(reasons=REASONS), Health("gandiva", NOW - 3600, ticks=3600, tick_seconds=0.012))
    return live


def write_journal(path: Path) -> None:
    with Journal(path) as journal:
        for live in snapshot().jobs.values():
            journal.upsert_job(
                JobRecord(
                    id=live.id,
                    user=live.user,
                    gpus=live.gpus,
                    submit_time=live.submit_time,
                    name=live.name,
                    account=live.account,
                    partition=live.partition,
                    weight=live.request.weight,
                    start_time=live.start_time,
                    state="PENDING" if live.phase is Phase.QUEUED else "RUNNING",
                    suspends=3,
                    moves=1,
                )
            )
        journal.upsert_job(
            JobRecord(
                id=JobId(100),
                user="alice",
                gpus=2,
                submit_time=NOW - 9000,
                name="done",
                account="vision",
                partition="gpu",
                start_time=NOW - 8000,
                end_time=NOW - 4400,
                state="COMPLETED",
                exit_code=0,
                step_seconds=0.125,
            )
        )
        journal.open_slice(JobId(100), on("n1", 0, 1), NOW - 8000)
        journal.close_slice(JobId(100), NOW - 6200, "its slice is over")
        journal.record_decision(NOW - 6200, JobId(100), "suspend", SLICE_OVER, on("n1", 0, 1))
        journal.record_event(NOW - 6200, JobId(100), "n1", "suspended", "left 0 bytes on n1:0 n1:1")
        journal.record_event(NOW - 100, None, "n2", "node_lost", "its agent does not answer")
