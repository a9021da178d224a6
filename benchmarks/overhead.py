# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller costs by the number of jobs that Slurm knows: `python -m benchmarks.overhead`.

A real slurmctld with 8 to 10,000 waiting jobs (MaxJobCount is raised); all GPUs are taken by ordinary jobs,
so that nothing starts and what is left is the cost of looking and deciding. For each size and each adapter
the daemon runs for a while; processor time is what the kernel counts for the processes, which hardly depends
on other load. Then the same question put to slurmctld by hand, with and without the time of the last answer
(`slurm_load_jobs(update_time)`), to see what that shortcut is worth.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from container.cluster import MiniCluster
from container.errors import MiniClusterError
from container.images import REPOSITORY_ROOT
from container.spec import ClusterSpec, NodeGroup

SIZES = (8, 100, 1000, 3000, 10000)
MIB = 1 << 20
CYCLES = 4
"""At least so many are measured."""
CYCLE_SECONDS = 300.0
PYTHON = "/opt/gandiva/venv/bin/python"
INTERVAL_SECONDS: Mapping[str, float] = {"pyslurm": 1.0, "command": 5.0}
"""`loop.interval_seconds`, by adapter."""
LONGEST_CYCLE_SECONDS: Mapping[str, float] = {"pyslurm": 3.0, "command": 15.0}

# As a user: sbatch takes a process for each job, which is what a user does, but not 10,000 times at once.
SUBMIT = """
import sys, pyslurm
for number in range(int(sys.argv[1])):
    pyslurm.JobSubmitDescription(
        name=f"wait-{number}", script="#!/bin/sh\\nsleep 60\\n", working_directory="/tmp",
        gres_per_node={"gpu": 1}, memory_per_node="100M", standard_output="/dev/null", time_limit=60,
        environment={"PATH": "/usr/bin:/bin"},
    ).submit()
"""

COUNT = r"""
import json, os, re
kinds = (("controller", r"gandiva\0daemon"), ("worker", "pyslurm_worker"), ("slurmctld", r"(^|/)slurmctld\0"))
tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
found = {name: [0.0, 0, 0] for name, _ in kinds}
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline", errors="replace").read()
        kind = next((name for name, pattern in kinds if re.search(pattern, command)), None)
        if kind is None:
            continue
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    # The controller's dead children are squeue and scontrol.
    found[kind][0] += sum(map(int, fields[11:15])) / tick
    found[kind][1] += int(fields[21]) * page
    found[kind][2] += int(fields[17])
print(json.dumps(found))
"""

UPDATE_TIME = """
import ctypes, json, time
lib = ctypes.CDLL("libslurm.so", mode=ctypes.RTLD_GLOBAL)
lib.slurm_init(None)
lib.slurm_load_jobs.argtypes = [ctypes.c_long, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint16]
def load(since):
    answer = ctypes.c_void_p()
    begin, cpu = time.perf_counter(), time.process_time()
    status = lib.slurm_load_jobs(since, ctypes.byref(answer), 3)
    found = (time.perf_counter() - begin, time.process_time() - cpu)
    last = ctypes.cast(answer, ctypes.POINTER(ctypes.c_long))[1] if status == 0 else None
    if status == 0:
        lib.slurm_free_job_info_msg(answer)
    return found, last
def middle(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
full = [load(0) for _ in range(9)]
later = full[-1][1] + 10
short = [load(later) for _ in range(9)]
assert all(last is None for _, last in short), "slurmctld sent everything again"
print(json.dumps({
    "full": [middle(t[i] for t, _ in full) for i in (0, 1)],
    "short": [middle(t[i] for t, _ in short) for i in (0, 1)],
}))
"""


@dataclass(frozen=True)
class Cost:
    """Of one size with one adapter, per cycle of the loop unless it says otherwise."""

    jobs: int
    adapter: str
    cycles: float
    controller_ms: float
    worker_ms: float
    slurmctld_ms: float
    rpcs: Mapping[str, float]
    share: float
    """Of one processor, controller and its helpers, at `INTERVAL_SECONDS`."""
    resident_mib: float
    worker_mib: float


def counted(cluster: MiniCluster) -> dict[str, list[float]]:
    """Processor seconds, resident bytes, threads by kind of process on the controller's host."""
    found: dict[str, list[float]] = json.loads(
        cluster.exec("ctl", ["python3", "-"], stdin=COUNT, timeout_seconds=60).stdout
    )
    return found


def cycles(cluster: MiniCluster) -> float:
    """Cycles of the loop since the daemon's start, by its own count; -1 where it does not answer."""
    probe = "import urllib.request as u; print(u.urlopen('http://localhost:6822/metrics').read().decode())"
    done = cluster.exec("ctl", ["python3", "-c", probe], check=False, timeout_seconds=60)
    match = re.search(r"^gandiva_ticks_total (\S+)", done.stdout, re.MULTILINE)
    return float(match[1]) if match else -1.0


def await_cycles(cluster: MiniCluster, wanted: float) -> None:
    """Wait until the daemon has made so many cycles."""
    deadline = time.monotonic() + CYCLE_SECONDS
    while cycles(cluster) < wanted:
        if time.monotonic() > deadline:
            raise MiniClusterError(f"no {wanted:.0f} cycles of the loop within {CYCLE_SECONDS:.0f} s")
        time.sleep(1)


def rpcs(cluster: MiniCluster) -> dict[str, int]:
    """RPCs since the last `sdiag -r`, by kind."""
    text = cluster.exec("ctl", ["sdiag"], timeout_seconds=60).stdout
    part = text.partition("statistics by message type")[2].partition("statistics by user")[0]
    return {
        name: int(count) for name, count in re.findall(r"^\s+([A-Z_]+)\s+\(\s*\d+\) count:(\d+)", part, re.M)
    }


def measure(cluster: MiniCluster, jobs: int, adapter: str, seconds: float) -> Cost:
    """Run the daemon for a while. slurmctld's own share without it is taken off."""
    before = counted(cluster)["slurmctld"][0]
    began = time.monotonic()
    time.sleep(seconds / 3)
    idle = (counted(cluster)["slurmctld"][0] - before) / (time.monotonic() - began)
    settings = {
        "cluster": {"adapter": adapter, "rpc_deadline_seconds": 300.0},
        "loop": {"interval_seconds": INTERVAL_SECONDS[adapter]},
    }
    try:
        cluster.start_controller(settings)
    except MiniClusterError:
        # Its first cycle may take longer than others are given: 10,000 jobs by squeue, on a busy machine.
        if not cluster.controller_running():
            raise
    await_cycles(cluster, 2)
    cluster.exec("ctl", ["sdiag", "-r"], timeout_seconds=120)
    # Asking for the cycles costs the controller as much as some cycles: once before, and once after.
    first_cycles, first, began = cycles(cluster), counted(cluster), time.monotonic()
    time.sleep(max(seconds, CYCLES * LONGEST_CYCLE_SECONDS[adapter]))
    last, span, last_cycles = counted(cluster), time.monotonic() - began, cycles(cluster)
    kinds = rpcs(cluster)
    cluster.stop_controller()
    done = max(1.0, last_cycles - first_cycles)

    def used(kind: str) -> float:
        return last[kind][0] - first[kind][0]

    return Cost(
        jobs=jobs,
        adapter=adapter,
        cycles=done,
        controller_ms=1e3 * used("controller") / done,
        worker_ms=1e3 * used("worker") / done,
        slurmctld_ms=1e3 * max(0.0, used("slurmctld") - idle * span) / done,
        # Everything but what nodes and our own look at the statistics cause. A cycle asks for the jobs once.
        rpcs={
            name: count / max(1, kinds.get("REQUEST_JOB_INFO", 0))
            for name, count in kinds.items()
            if "INFO" in name and not name.startswith("REQUEST_STATS")
        },
        share=(used("controller") + used("worker")) / span,
        resident_mib=last["controller"][1] / MIB,
        worker_mib=last["worker"][1] / MIB,
    )


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of jobs (%(default)s)")
    parser.add_argument("--adapters", nargs="+", default=list(INTERVAL_SECONDS), choices=INTERVAL_SECONDS)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each size and adapter (%(default)s)")
    parser.add_argument("--name", default="overhead", help="of the mini cluster (%(default)s)")
    parser.add_argument("--source", type=Path, default=REPOSITORY_ROOT, help="sources of another checkout")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    spec = ClusterSpec(
        name=options.name,
        gandiva_default="on",
        nodes=(NodeGroup(names="n[1-2]", gpus=8),),
        slurm_conf=("MaxJobCount=20000",),
    )
    cluster = MiniCluster(spec, report=lambda line: console.print(f"  {line}", highlight=False))
    costs, shortcuts, there = [], {}, 0
    try:
        cluster.down()
        cluster.up(options.source)
        for node in spec.node_names:
            words = ["sbatch", "--no-gandiva", "--gres=gpu:8", "--mem=100M", "-w", node, "--wrap=sleep 36000"]
            cluster.exec("login", words, user="bob")
        for size in sorted(options.sizes):
            cluster.exec(
                "login", [PYTHON, "-", str(size - there)], user="alice", stdin=SUBMIT, timeout_seconds=600
            )
            there = size
            for adapter in options.adapters:
                costs.append(measure(cluster, size, adapter, options.seconds))
                console.print(f"  {costs[-1]}", highlight=False)
            shortcuts[size] = json.loads(
                cluster.exec("ctl", [PYTHON, "-"], stdin=UPDATE_TIME, timeout_seconds=120).stdout
            )
    except MiniClusterError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 1
    finally:
        if not options.keep:
            cluster.down()
    show(console, costs, shortcuts)
    return 0


def show(console: Console, costs: list[Cost], shortcuts: Mapping[int, Mapping[str, list[float]]]) -> None:
    """Two tables."""
    table = Table(
        "jobs", "adapter", "controller ms", "helpers ms", "slurmctld ms", "RPCs", "one core", "MiB",
        "helpers MiB",
        title="Per cycle of the loop (processor time)",
    )  # fmt: skip
    for cost in costs:
        table.add_row(
            f"{cost.jobs:,}",
            cost.adapter,
            f"{cost.controller_ms:.0f}",
            f"{cost.worker_ms:.0f}" if cost.worker_ms else "",
            f"{cost.slurmctld_ms:.0f}",
            f"{sum(cost.rpcs.values()):.1f}",
            f"{cost.share:.1%}",
            f"{cost.resident_mib:.0f}",
            f"{cost.worker_mib:.0f}" if cost.worker_mib else "",
        )
    console.print(table)
    table = Table(
        "jobs", "everything ms", "nothing new ms", title="slurm_load_jobs: wall time (processor time)"
    )
    for size, times in shortcuts.items():
        words = [f"{1e3 * times[kind][0]:.1f} ({1e3 * times[kind][1]:.1f})" for kind in ("full", "short")]
        table.add_row(f"{size:,}", *words)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
