# SPDX-License-Identifier: GPL-2.0-or-later
"""One simulation by Blox' own classes, in one process; prints one line of JSON. `blox.py` starts it.

    PYTHON blox_rounds.py CHECKOUT JOBS.csv --policy Las --nodes 8 --gpus-per-node 4 --round 300

Blox simulates with two programs that talk gRPC: one hands the trace out round by round, the other decides.
Here its manager (metrics, ends, launches), job and cluster state, scheduler and placement are called in the
order of its own simulation loop, and the trace is handed over in memory. There is no gRPC, nothing is
printed, and a round is scheduled once: all in its favour. Needs a Python with pandas < 2
(`DataFrame.append`), not this project's environment, so nothing of this project is imported.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

ABSENT = (
    *("grpc", "google", "google.protobuf", "google.protobuf.json_format", "deployment.grpc_stubs"),
    *(f"{name}_pb2{kind}" for name in ("rm", "nm", "simulator") for kind in ("", "_grpc")),
)
"""What Blox imports for its daemons; here nothing of it is ever reached."""
QUIET = ("blox.blox_manager", "deployment.grpc_client_rm", "blox.utils")


class Feed:
    """Stands where Blox asks its other program: nodes at the begin, then the jobs that have arrived."""

    def __init__(self, jobs: list[dict[str, Any]], nodes: int, gpus_per_node: int) -> None:
        self.jobs, self.next = jobs, 0
        uuids = "\n".join(map(str, range(gpus_per_node)))
        self.nodes = [{"ipaddr": f"n{i}", "numGPUs": gpus_per_node, "gpuUUIDs": uuids} for i in range(nodes)]

    def get_new_nodes(self) -> list[dict[str, Any]]:
        """All at the first call."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def get_jobs_sim(self, now: float) -> list[dict[str, Any]]:
        """Those submitted since the last call."""
        begin = self.next
        while self.next < len(self.jobs) and self.jobs[self.next]["submit_time"] <= now:
            self.next += 1
        return self.jobs[begin : self.next]


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """Columns job_id, arrival, duration (s), gpus; an iteration lasts one second."""
    with path.open() as file:
        return [
            {
                "name": row["job_id"],
                "simulation": True,
                "submit_time": float(row["arrival"]),
                "num_GPUs": int(row["gpus"]),
                "job_iteration_time": 1,
                "job_total_iteration": float(row["duration"]),
                "job_executed_iteration": 0,
            }
            for row in csv.DictReader(file)
        ]


def load(checkout: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """Their packages `blox`, `schedulers` and `placement`, without what only the daemons need."""
    for name in ABSENT:
        sys.modules[name] = MagicMock(name=name)
    sys.modules["rm_pb2_grpc"].RMServerServicer = object  # type: ignore[attr-defined]
    sys.path[:0] = [str(checkout), str(checkout / "blox")]
    found = tuple(importlib.import_module(name) for name in ("blox", "schedulers", "placement.placement"))
    for name in QUIET:
        sys.modules[name].print = lambda *_: None  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


def simulate(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds until all jobs have ended."""
    blox, schedulers, placement = load(args.checkout)
    jobs = read_jobs(args.jobs)
    options = SimpleNamespace(
        scheduler_name=args.policy,
        placement_name="Place",
        acceptance_policy="AcceptAll",
        exp_prefix="run",
        load=0,
        round_duration=args.round,
        node_manager_port=0,
        central_scheduler_port=0,
        simulator_rpc_port=0,
        start_id_track=0,
        stop_id_track=len(jobs) - 1,
    )
    os.environ["sched_policy"] = args.policy  # noqa: SIM112 (Blox asks for it)
    manager = blox.BloxManager(options)
    manager.rmserver = Feed(jobs, args.nodes, args.gpus_per_node)
    cluster, state = blox.ClusterState(options), blox.JobState(options)
    policy, placer = getattr(schedulers, args.policy)(options), placement.JobPlacement(options)
    rounds = preemptions = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        manager.update_cluster(cluster)
        manager.update_metrics(cluster, state)
        if manager.terminate:
            break
        state.add_new_jobs(manager.pop_wait_queue(True))
        order = policy.schedule(state, cluster)
        suspended, launched = placer.place(state, cluster, order)
        preemptions += len(suspended)
        manager.exec_jobs(launched, suspended, cluster, state)
        for clock in (manager, state, cluster):
            clock.time += args.round
        rounds += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    jcts = {jobs[number]["name"]: end - begin for number, (begin, end) in state.job_completion_stats.items()}
    return {
        "jobs": len(jcts),
        "rounds": rounds,
        "preemptions": preemptions,
        "avg_jct_seconds": sum(jcts.values()) / len(jcts),
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "jcts": jcts,
    }


def main() -> int:
    """In an empty folder, because Blox writes its results into the present one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=lambda text: Path(text).resolve())
    parser.add_argument("jobs", type=lambda text: Path(text).resolve())
    parser.add_argument("--policy", choices=("Fifo", "Las", "Srtf"), required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus-per-node", type=int, required=True)
    parser.add_argument("--round", type=int, required=True, help="seconds")
    args = parser.parse_args()
    printed = sys.stdout
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        os.chdir(folder)
        sys.stdout = nowhere
        try:
            found = simulate(args)
        finally:
            sys.stdout = printed
            os.chdir("/")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
