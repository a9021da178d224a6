# SPDX-License-Identifier: GPL-2.0-or-later
"""Our simulator beside Blox' on its cases of the references, in one run.

    python -m benchmarks.peers.blox --blox CHECKOUT --python PYTHON [--only REGEX] [--repeat N] [--shipped N]

CHECKOUT is a clone of msr-fiddle/blox (commit c8851b2 was used), PYTHON one that has pandas < 2. Blox runs
twice: as it is shipped, its two programs over gRPC (`blox_shipped.py`, which tells what else PYTHON and
CHECKOUT must have for that), and its rounds alone in one process (`blox_rounds.py`), which is far quicker.
That it does here what it does by itself is checked: each job must end when its recorded result says.
Ours runs with `fidelity/blox.toml`, in rounds of the same length.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fidelity import policies
from benchmarks.peers.measure import (
    FIDELITY,
    LIMIT_SECONDS,
    Ours,
    described,
    environment,
    least,
    references,
    spent,
)

TRACES = {"inputs/plain/xs.csv": "converted/xs_job.csv", "inputs/plain/t60.csv": "shipped/60_job.csv"}
"""The same jobs as plain CSV (for Blox) and in Tiresias' format (for ours)."""
STUBS = "blox/deployment/grpc_stubs/simulator_pb2_grpc.py"
NOT_COMPARED = "not compared with Blox"
WANTED = 50
"""Times as quick as Blox as shipped."""
HEADER = (
    "| case | policy | as shipped CPU (wall) s | of it after its start | rounds alone CPU s "
    "| ours CPU (wall) s | of it simulation | shipped / ours CPU (wall) | shipped / ours, without starts "
    "| rounds / our simulation | average JCT, Blox / ours (s) |\n" + "|---" * 11 + "|"
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """A run of Blox' two programs, times in seconds."""

    cpu: float
    """Both, with their starts."""
    wall: float
    """Of the second, which is started when the first is ready."""
    running_cpu: float
    """Both, without their imports and the begin of the interpreter."""


@dataclass(frozen=True, slots=True)
class Row:
    """The best of the repetitions, times in seconds."""

    case: str
    policy: str
    shipped: Shipped | None
    rounds_cpu: float
    our_cpu: float
    our_wall: float
    simulation_cpu: float
    their_average_jct: float
    our_average_jct: float

    def programs(self, their: Shipped) -> float:
        """CPU time of both programs against that of ours."""
        return their.cpu / self.our_cpu

    def simulations(self, their: Shipped) -> float:
        """The same without the starts."""
        return their.running_cpu / self.simulation_cpu

    def __str__(self) -> str:
        whole = running = programs = simulations = "-"
        if their := self.shipped:
            whole, running = f"{their.cpu:.2f} ({their.wall:.1f})", f"{their.running_cpu:.2f}"
            programs = f"{self.programs(their):.0f} ({their.wall / self.our_wall:.0f}) times"
            simulations = f"{self.simulations(their):.0f} times"
        return (
            f"| {self.case} | {self.policy} | {whole} | {running} | {self.rounds_cpu:.2f} "
            f"| {self.our_cpu:.2f} ({self.our_wall:.1f}) | {self.simulation_cpu:.3f} | {programs} "
            f"| {simulations} | {self.rounds_cpu / self.simulation_cpu:.0f} times "
            f"| {self.their_average_jct:.3f} / {self.our_average_jct:.3f} |"
        )


def outcome(rows: list[Row]) -> str:
    """What one looks for in the table."""
    if not rows:
        return "No case has that name."
    run = [(row, row.shipped) for row in rows if row.shipped]
    if not run:
        return f"Blox as shipped was not run: nothing is known of {WANTED} times."
    alone = least([row.simulations(their) for row, their in run], WANTED, digits=1)
    programs = least([row.programs(their) for row, their in run], WANTED, digits=1)
    return (
        f"At least {WANTED} times as quick as Blox as shipped: simulation alone in {alone}, "
        f"with the start of programs in {programs}."
    )


def different(recorded: dict[str, float], found: dict[str, float]) -> list[str]:
    """Jobs whose completion time is not the recorded one."""
    return sorted(i for i in recorded.keys() | found.keys() if recorded.get(i) != found.get(i))


def free_ports(count: int) -> list[str]:
    """Different ones that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def started(*words: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that does not outlive the block, whatever happens in it."""
    options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def as_shipped(python: str, words: list[str]) -> tuple[Shipped, dict[str, float]]:
    """Both programs, and how long each job took. Raises RuntimeError with what they said when one fails."""
    script = str(Path(__file__).with_name("blox_shipped.py"))
    words = [*words, "--ports", *free_ports(2)]
    its_environment = environment(
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",  # (of its README)
        no_grpc_proxy="localhost,127.0.0.1",
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        place = {"cwd": folder, "env": its_environment, "stderr": errors}
        wall, said, failed = 0.0, "", True
        with started(python, script, "simulator", *words, **place) as simulator:
            assert simulator.stdout is not None
            if simulator.stdout.readline() == "ready\n":
                begin = time.perf_counter()
                with started(python, script, "scheduler", *words, **place) as scheduler:
                    said = scheduler.communicate(timeout=LIMIT_SECONDS)[0]
                wall = time.perf_counter() - begin
                failed = scheduler.returncode != 0
            handed = simulator.communicate(timeout=60)[0]
        if failed or simulator.returncode:
            errors.seek(0)
            raise RuntimeError(f"Blox as shipped failed: {errors.read()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(said)
    return Shipped(cpu, wall, found["cpu_seconds"] + json.loads(handed)["cpu_seconds"]), found["jcts"]


def compare(case: dict[str, Any], recorded: dict[str, float], args: argparse.Namespace) -> Row:
    """One case under one policy. Raises SystemExit when Blox does not do what it did for the references."""
    words = [str(args.blox), str(args.refs / case["jobs"]), "--policy", case["policy"]]
    words += ["--nodes", str(case["nodes"]), "--gpus-per-node", str(case["gpus_per_node"])]
    words += ["--round", str(case["round_s"])]
    rounds = [args.python, "-W", "ignore", str(Path(__file__).with_name("blox_rounds.py")), *words]
    seconds = case["round_s"]
    simulation = Ours(
        args.refs / "inputs/tiresias" / TRACES[case["jobs"]],
        f"v100:{case['nodes'] * case['gpus_per_node']}",
        case["gpus_per_node"],
        policies.BLOX[case["policy"]],
        FIDELITY / "blox.toml",
        (f"simulation.round_seconds={seconds}", f"policy.tiresias-las.interval_seconds={seconds}"),
    )

    def check(jcts: dict[str, float], what: str) -> None:
        if wrong := different(recorded, jcts):
            name = f"{case['case']} {case['policy']}"
            raise SystemExit(
                f"{name}: {what} ends {len(wrong)} jobs at other times than recorded: {wrong[:9]}"
            )

    shipped, theirs, ours, alone = [], [], [], []
    for number in range(max(args.repeat, args.shipped)):
        if number < args.shipped:
            found, jcts = as_shipped(args.python, words)
            check(jcts, "Blox as shipped")
            shipped.append(found)
        if number < args.repeat:
            said = json.loads(spent(rounds, env=environment()).printed)
            check(said["jcts"], "Blox")
            theirs.append(said["cpu_seconds"])
            ours.append(simulation.command())
            alone.append(simulation.alone()[0])
    best = None
    if shipped:
        best = Shipped(
            min(run.cpu for run in shipped),
            min(run.wall for run in shipped),
            min(run.running_cpu for run in shipped),
        )
    return Row(
        case["case"],
        case["policy"],
        best,
        min(theirs),
        min(run.cpu_seconds for run in ours),
        min(run.wall_seconds for run in ours),
        min(alone),
        said["avg_jct_seconds"],
        json.loads(ours[0].printed)["avg_jct_seconds"],
    )


def not_shipped(args: argparse.Namespace) -> str:
    """Why Blox cannot be run as it is shipped; empty: it can."""
    if not (args.blox / STUBS).is_file():
        return f"no gRPC stubs in {args.blox} (`mkdir grpc_stubs; make grpc` in its blox/deployment)"
    # (With pyplot, which lists all fonts at its first import on a machine: no run is to be charged with it.)
    check = "import grpc, matplotlib.pyplot, google.protobuf as p; raise SystemExit(p.__version__ >= '5')"
    if subprocess.run([args.python, "-c", check], capture_output=True, check=False, timeout=120).returncode:
        return f"{args.python} lacks grpcio, matplotlib or protobuf < 5"
    return ""


def missing(args: argparse.Namespace) -> str:
    """What is not there; empty: nothing."""
    if args.blox is None or not (args.blox / "blox" / "blox_manager.py").is_file():
        return f"no checkout of msr-fiddle/blox at {args.blox} (--blox or GANDIVA_BLOX)"
    if not (args.refs / "results_public.json").is_file():
        return f"no references in {args.refs} (--refs or GANDIVA_REFS)"
    check = "import pandas; raise SystemExit(not hasattr(pandas.DataFrame, 'append'))"
    try:
        found = subprocess.run([args.python, "-c", check], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{args.python} does not run ({error})"
    return f"{args.python} has no pandas < 2 (--python or GANDIVA_BLOX_PYTHON)" if found.returncode else ""


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    checkout = os.environ.get("GANDIVA_BLOX")
    parser.add_argument("--blox", type=Path, default=Path(checkout) if checkout else None, metavar="DIR")
    parser.add_argument("--python", default=os.environ.get("GANDIVA_BLOX_PYTHON", sys.executable))
    parser.add_argument("--refs", type=Path, default=references(), metavar="DIR")
    parser.add_argument("--only", default="", metavar="REGEX", help="of `case/policy`")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="alternating; the best counts")
    parser.add_argument("--shipped", type=int, default=1, metavar="N", help="runs of Blox as it is shipped")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Status 0, too, when there is nothing to compare with, which is said."""
    args = parsed(arguments)
    if problem := missing(args):
        print(f"{NOT_COMPARED}: {problem}")
        return 0
    print(f"Ours: {described(sys.executable)}; theirs: {described(args.python)}.", flush=True)
    results = json.loads((args.refs / "results_public.json").read_text())["blox"]
    with gzip.open(args.refs / "per_job/per_job_jct_public.json.gz") as file:
        per_job = json.load(file)
    if args.shipped and (problem := not_shipped(args)):
        print(f"Blox as it is shipped is left out: {problem}")
        args.shipped = 0
    rows = []
    print(HEADER, flush=True)
    for case in results:
        if re.search(args.only, f"{case['case']}/{case['policy']}"):
            rows.append(compare(case, per_job[case["per_job_key"]], args))
            print(rows[-1], flush=True)
    print(f"\n{outcome(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
