# SPDX-License-Identifier: GPL-2.0-or-later
"""One of Blox' own two programs, as its users start it; `blox.py` starts both, and speaks with them.

    PYTHON blox_shipped.py simulator CHECKOUT JOBS.csv --policy Las --nodes 8 --gpus-per-node 4 --round 300
                           --ports 50050 50051
    PYTHON blox_shipped.py scheduler CHECKOUT …        the same arguments, when the first has said `ready`

They are `simulator_simple.py`, which hands nodes and jobs out over gRPC, and `las_scheduler.py` with its
loop. What they print goes to /dev/null. Changed is only what they must be told and have no option for:

* the simulator program's `Workload` reads the Philly log and draws arrivals: the jobs of our table instead,
  each an object of its own class `Job`, and after the last one that never arrives (its own begins anew);
* the number of nodes and GPUs, the name of the policy (`Las` is written into it) and the scheduler's port;
* the scheduler program makes `schedulers.Las`: the policy asked for under that name (`srtf_scheduler.py`
  imports modules that are gone).

PYTHON needs pandas < 2, matplotlib and grpcio with protobuf < 5 (it calls `MessageToDict` in a way that is
gone since), and the checkout its stubs, made by its own `make grpc`. Nothing of this project is imported.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO


class Trace:
    """Stands where their `Workload` does: the jobs of a table, one at each call, in its order."""

    def __init__(self, path: Path, make: Any) -> None:
        """`make` is their class of a job. Columns job_id, arrival, duration (s), gpus."""
        self.make, self.next = make, 0
        with path.open() as file:
            self.jobs = list(csv.DictReader(file))

    def generate_next_job(self, _last_arrival: float) -> Any:
        """An iteration lasts one second. After the last job one that never arrives."""
        row: dict[str, Any] = {"arrival": math.inf, "duration": 1, "gpus": 1}
        if self.next < len(self.jobs):
            row = self.jobs[self.next]
        number, self.next = self.next, self.next + 1
        unused = (None,) * 4
        return self.make(
            number, float(row["arrival"]), 1, float(row["duration"]), int(row["gpus"]), *unused, 0
        )


def hand_out(args: argparse.Namespace, jobs: int, said: TextIO) -> float:
    """The simulator program, until standard input ends. CPU seconds from being ready to the end."""
    words = ["--cluster-job-log", str(args.jobs), "--sim-type", "trace-actual", "--jobs-per-hour", "1"]
    words += ["--start-job-track", "0", "--end-job-track", str(jobs - 1), "--exp-prefix", "run"]
    sys.argv = ["simulator_simple.py", *words, "--simulator-rpc-port", str(args.ports[0])]
    program = importlib.import_module("simulator_simple")
    make = importlib.import_module("job").Job  # theirs: its folder `workload` is on the path by now
    program.Workload = lambda *_, **__: Trace(args.jobs, make)  # type: ignore[attr-defined]
    runner = program.SimulatorRunner

    def with_our_nodes(
        log: str, loads: list[float], track: tuple[int, int], _: list[str], *more: Any, **also: Any
    ) -> Any:
        also |= {"number_of_machines": args.nodes, "gpus_per_machine": args.gpus_per_node}
        served = runner(log, loads, track, [args.policy], *more, **also)
        served.ipaddr_rm = f"localhost:{args.ports[1]}"
        return served

    program.SimulatorRunner = with_our_nodes  # type: ignore[attr-defined]
    server = program.launch_server(program.parse_args(argparse.ArgumentParser()))
    print("ready", file=said, flush=True)
    begin = time.process_time()
    sys.stdin.read()
    server.stop(0)
    return time.process_time() - begin


def schedule(args: argparse.Namespace, jobs: int) -> float:
    """The scheduler program, to its end. CPU seconds without its imports."""
    words = ["--simulate", "--load", "1", "--exp-prefix", "run", "--round-duration", str(args.round)]
    words += ["--start-id-track", "0", "--stop-id-track", str(jobs - 1)]
    words += ["--simulator-rpc-port", str(args.ports[0]), "--central-scheduler-port", str(args.ports[1])]
    sys.argv = ["las_scheduler.py", *words]
    program = importlib.import_module("las_scheduler")
    program.schedulers.Las = getattr(program.schedulers, args.policy)
    begin = time.process_time()
    program.main(program.parse_args(argparse.ArgumentParser()))
    return time.process_time() - begin


def completion_times(folder: Path, names: list[str]) -> dict[str, float]:
    """What the scheduler program wrote into its folder. Its numbers count jobs as they came."""
    (path,) = folder.glob("run_*_accept_all_*_job_stats.json")
    spans = json.loads(path.read_text())
    return {names[int(number)]: end - begin for number, (begin, end) in spans.items()}


def main() -> int:
    """What it took, and of the scheduler the results, in one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=("simulator", "scheduler"))
    parser.add_argument("checkout", type=lambda text: Path(text).resolve())
    parser.add_argument("jobs", type=lambda text: Path(text).resolve())
    parser.add_argument("--policy", choices=("Fifo", "Las", "Srtf"), required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus-per-node", type=int, required=True)
    parser.add_argument("--round", type=int, required=True, help="seconds")
    parser.add_argument("--ports", type=int, nargs=2, required=True, help="simulator's, scheduler's")
    args = parser.parse_args()
    with args.jobs.open() as file:
        names = [row["job_id"] for row in csv.DictReader(file)]
    with os.fdopen(os.dup(1), "w") as said:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        sys.path[0] = str(args.checkout)  # as if their file was started
        if args.program == "simulator":
            found: dict[str, Any] = {"cpu_seconds": hand_out(args, len(names), said)}
        else:
            found = {"cpu_seconds": schedule(args, len(names))}
            found["jcts"] = completion_times(Path.cwd(), names)
        print(json.dumps(found), file=said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
