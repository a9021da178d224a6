# SPDX-License-Identifier: GPL-2.0-or-later
"""How long one decision takes, by the size of the cluster: `python -m benchmarks.plan_time`.

The cluster is full and over-subscribed two to one; each measured call is one at which every server's slice
has ended, the dearest there is. Prints median and 99th percentile, and the growth from row to row.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from controller.model import Gpu, GpuId, Job, JobId, Node, Phase, Request, Snapshot
from controller.policies.gandiva import Gandiva, GandivaSettings

GPUS_PER_NODE = 8
SLICE_SECONDS = 60.0


@dataclass(frozen=True)
class Result:
    """Times of one size, in seconds."""

    gpus: int
    jobs: int
    median_seconds: float
    p99_seconds: float


def make_snapshot(gpus: int) -> Snapshot:
    """A full cluster: on each server eight exact one-GPU jobs that run and eight floating ones that wait."""
    nodes, jobs = {}, {}
    number = 0
    for index in range(gpus // GPUS_PER_NODE):
        name = f"n{index}"
        ids = [GpuId(name, i) for i in range(GPUS_PER_NODE)]
        nodes[name] = Node(name, tuple(Gpu(g, "a100", 80 << 30, memory_used_bytes=0, shards=16) for g in ids))
        everywhere = frozenset(ids)
        for gpu in ids:
            for binding, phase in ((frozenset({gpu}), Phase.RUNNING), (everywhere, Phase.SUSPENDED)):
                number += 1
                jobs[JobId(number)] = Job(
                    id=JobId(number),
                    user="alice",
                    request=Request(gpus=1),
                    phase=phase,
                    submit_time=float(number),
                    binding=binding,
                    running_on=frozenset({gpu}),
                    movable=True,
                    run_seconds=float(number % 600),
                )
    return Snapshot(0.0, nodes, jobs)


def measure(gpus: int, calls: int) -> Result:
    """Plan `calls` times, each one slice later."""
    policy = Gandiva(GandivaSettings(slice_seconds=SLICE_SECONDS))
    snapshot = make_snapshot(gpus)
    state = policy.plan(snapshot, {}).state
    times = []
    for call in range(1, calls + 1):
        snapshot = replace(snapshot, time=call * 2 * SLICE_SECONDS)
        gc.collect()
        begin = time.perf_counter()
        state = policy.plan(snapshot, state).state
        times.append(time.perf_counter() - begin)
    times.sort()
    p99 = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
    return Result(gpus, len(snapshot.jobs), statistics.median(times), p99)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 5000, 10000], metavar="GPUS")
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    table = Table(
        "GPUs", "jobs", "median", "p99", "per job and log2(jobs)", title="One decision, policy gandiva"
    )
    for size in options.sizes:
        result = measure(size, options.calls)
        per = result.median_seconds / (result.jobs * math.log2(result.jobs))
        table.add_row(
            f"{result.gpus:,}",
            f"{result.jobs:,}",
            f"{result.median_seconds * 1e3:.1f} ms",
            f"{result.p99_seconds * 1e3:.1f} ms",
            f"{per * 1e9:.0f} ns",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
