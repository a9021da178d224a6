# SPDX-License-Identifier: GPL-2.0-or-later
"""How long one decision of policy `gandiva` takes, by the size of the cluster:
`python -m benchmarks.plan_time`.

The cluster is full and over-subscribed two to one. Each round all servers' slices have ended at the same
moment, the dearest there is; decisions are made, and carried out at once, until every server has had its
turn. Every decision is measured, in CPU time (other load disturbs it less) and in wall time, twice: with
snapshots that say what changed, as in nearly every turn of the loop, and with snapshots that say that
everything did, as at a resync. Prints median, 99th percentile and maximum.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from controller.model import (
    ALL_CHANGED,
    Changes,
    Gpu,
    GpuId,
    Job,
    JobId,
    Memory,
    Node,
    Note,
    Phase,
    Placement,
    Plan,
    Request,
    Size,
    Snapshot,
    Usage,
)
from controller.policies.assemble import make_policy
from controller.policies.settings import GandivaSettings
from controller.settings.policies import PolicySettings

GPUS_PER_NODE = 8
SLICE_SECONDS = 60.0


@dataclass
class Result:
    """Of one size. Times in seconds, one for each decision."""

    jobs: int
    first_seconds: float = 0.0
    """CPU time of the plan that is made from nothing."""
    cpu_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Decisions for each turn of all servers."""


def make_jobs(gpus: list[GpuId]) -> Iterator[tuple[Job, Usage]]:
    """Of one server: on each GPU an exact job that runs; and as many floating ones, of one GPU each, that
    wait."""
    for gpu in gpus:
        for runs in (True, False):
            number = 2 * (int(gpu.node[1:]) * GPUS_PER_NODE + gpu.ordinal) + (1 if runs else 2)
            here, seconds = frozenset({gpu}), float(number % 600)
            job = Job(
                id=JobId(number),
                user="alice",
                request=Request(size=Size.exactly(1)),
                phase=Phase.RUNNING if runs else Phase.SUSPENDED,
                submit_time=float(number),
                placement=Placement(here, here) if runs else Placement(frozenset(), frozenset(gpus)),
                last=here,
                may_stop=runs,
                may_start=not runs,
                may_move=True,
                start_time=0.0,
            )
            idle_since = None if runs else 0.0
            yield (
                job,
                Usage(
                    seconds=seconds,
                    gpu_seconds=seconds,
                    since=0.0 if runs else None,
                    gpus=int(runs),
                    idle_since=idle_since,
                ),
            )


def make_snapshot(gpus: int) -> Snapshot:
    """A full cluster."""
    nodes, jobs, usage = {}, {}, {}
    for index in range(gpus // GPUS_PER_NODE):
        name = f"n{index}"
        ids = [GpuId(name, i) for i in range(GPUS_PER_NODE)]
        cards = tuple(Gpu(id=gpu, model="a100", memory_bytes=80 << 30, shards=16) for gpu in ids)
        nodes[name] = Node(name=name, gpus=cards)
        for job, used in make_jobs(ids):
            jobs[job.id], usage[job.id] = job, used
    return Snapshot(time=0.0, nodes=nodes, jobs=jobs, usage=usage)


def carried_out(snapshot: Snapshot, plan: Plan, now: float) -> Snapshot:
    """What is seen after a plan."""
    jobs, usage = dict(snapshot.jobs), dict(snapshot.usage)
    for job_id, target in plan.targets.items():
        job, used, gpus = jobs[job_id], usage[job_id].stopped(now), target.placement.gpus
        usage[job_id] = used.started(now, len(gpus)) if gpus else used
        jobs[job_id] = replace(
            job,
            phase=Phase.RUNNING if gpus else Phase.SUSPENDED,
            placement=replace(job.placement, gpus=gpus),
            last=gpus or job.placement.gpus,
            may_stop=bool(gpus),
            may_start=not gpus,
        )
    changed = Changes(frozenset(plan.targets), frozenset())
    return replace(snapshot, time=now, jobs=jobs, usage=usage, changed=changed)


def measure(gpus: int, rounds: int, *, resync: bool) -> Result:
    """`rounds` turns of all servers."""
    policy = make_policy(PolicySettings(gandiva=GandivaSettings(slice_seconds=SLICE_SECONDS)))
    seen = make_snapshot(gpus)
    result = Result(len(seen.jobs))
    notes: dict[JobId, Note] = {}
    begin = time.process_time()
    plan = policy.plan(seen, Memory())
    result.first_seconds = time.process_time() - begin
    common = dict(plan.memory.common)
    notes.update(plan.memory.jobs)
    for turn in range(1, rounds + 1):
        now = turn * 2 * SLICE_SECONDS
        decisions = 0
        while True:
            seen = carried_out(seen, plan, now)
            if resync:
                seen = replace(seen, changed=ALL_CHANGED)
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            plan = policy.plan(seen, Memory(common, notes))
            result.cpu_seconds.append(time.process_time() - cpu)
            result.wall_seconds.append(time.perf_counter() - wall)
            common.update(plan.memory.common)
            notes.update(plan.memory.jobs)
            decisions += 1
            if not plan.targets and plan.wake_at > now:
                break
        result.rounds.append(decisions)
    return result


def words(seconds: list[float]) -> str:
    """Median, 99th percentile, maximum."""
    ordered = sorted(seconds)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return f"{ordered[len(ordered) // 2] * 1e3:.1f} / {p99 * 1e3:.1f} / {ordered[-1] * 1e3:.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 5000, 10000], metavar="GPUS")
    parser.add_argument("--calls", type=int, default=5, metavar="ROUNDS", help="turns of all servers")
    options = parser.parse_args()
    table = Table(
        "GPUs",
        "jobs",
        "snapshots",
        "decisions a turn",
        "from nothing",
        "CPU ms: median / p99 / max",
        "wall ms",
        title="One decision, policy gandiva, all slices over at once",
    )
    for size in options.sizes:
        for resync in (False, True):
            result = measure(size, options.calls, resync=resync)
            table.add_row(
                f"{size:,}",
                f"{result.jobs:,}",
                "everything changed" if resync else "say what changed",
                f"{sum(result.rounds) / len(result.rounds):.0f}",
                f"{result.first_seconds * 1e3:.0f} ms",
                words(result.cpu_seconds),
                words(result.wall_seconds),
            )
    Console().print(table)


if __name__ == "__main__":
    main()
