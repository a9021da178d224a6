# SPDX-License-Identifier: GPL-2.0-or-later
"""Our simulator beside the authors' simulator of Tiresias on its own traces, in one run.

    python -m benchmarks.peers.tiresias --tiresias CHECKOUT --python2 PYTHON [--only REGEX] [--repeat N]
    python -m benchmarks.peers.tiresias … --only philly     the whole Philly trace, dlas-gpu

CHECKOUT is a clone of SymbioticLab/Tiresias (commit 959f9b0 was used), PYTHON a Python 2.7. What it imports
and does not call with these options (numpy, a linear solver) is replaced by empty modules.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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

STUBS = {
    "numpy.py": "def mean(values):\n    return float(sum(values)) / len(values)\n",
    "cplex/__init__.py": "class Cplex(object):\n    pass\n",
    "cplex/six/__init__.py": "",
    "cplex/six/moves/__init__.py": "range = range\n",
    "cplex/exceptions.py": "class CplexError(Exception):\n    pass\n",
}
NOT_COMPARED = "not compared with Tiresias' simulator"
HEADER = (
    "| trace | schedule | theirs CPU s | ours CPU s | of it simulation "
    "| whole programs | theirs / our simulation | average JCT, theirs / ours (s) |\n" + "|---" * 8 + "|"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One trace on one cluster."""

    name: str
    trace: Path
    shape: str
    """Switches x nodes x GPUs, the name of their description of the cluster."""
    schedules: tuple[str, ...]

    @property
    def gpus(self) -> int:
        switches, nodes, gpus = map(int, self.shape.split("x"))
        return switches * nodes * gpus

    @property
    def gpus_per_node(self) -> int:
        return int(self.shape.split("x")[2])


@dataclass(frozen=True, slots=True)
class Row:
    """The best of the repetitions, CPU times in seconds."""

    case: str
    schedule: str
    their_cpu: float
    our_cpu: float
    simulation_cpu: float
    their_average_jct: float
    our_average_jct: float

    @property
    def programs(self) -> float:
        return self.their_cpu / self.our_cpu

    @property
    def simulation(self) -> float:
        """Their whole program against our simulation alone."""
        return self.their_cpu / self.simulation_cpu

    def __str__(self) -> str:
        return (
            f"| {self.case} | {self.schedule} | {self.their_cpu:.2f} | {self.our_cpu:.2f} "
            f"| {self.simulation_cpu:.3f} | {self.programs:.2f} times | {self.simulation:.2f} times "
            f"| {self.their_average_jct:.3f} / {self.our_average_jct:.3f} |"
        )


def outcome(rows: list[Row]) -> str:
    """What one looks for in the table."""
    if not rows:
        return "No case has that name."
    alone = least([row.simulation for row in rows], 1, digits=2)
    programs = least([row.programs for row in rows], 1, digits=2)
    return f"Not slower than theirs: simulation alone in {alone}, whole programs in {programs}."


def cases(inputs: Path) -> Iterator[Case]:
    """Those of the references."""
    most = tuple(schedule for schedule in policies.TIRESIAS if schedule != "dlas-gpu-8")
    yield Case("60_job", inputs / "shipped/60_job.csv", "1x2x4", most)
    yield Case("xs", inputs / "converted/xs_job.csv", "1x8x4", most)
    philly = inputs / "converted/philly_ee9e8c_job.csv"
    yield Case("ee9e8c (1,511 jobs)", philly, "1x18x8", tuple(policies.TIRESIAS))


def ours(case: Case, schedule: str, inputs: Path) -> Ours:
    """The same of ours."""
    policy, changes = policies.TIRESIAS[schedule]
    if schedule == "dlas-gpu-gittins":
        changes = (*changes, f'distribution="{inputs / "shipped/yarn-gput1000.csv"}"')
    settings = FIDELITY / "tiresias.toml"
    return Ours(case.trace, f"v100:{case.gpus}", case.gpus_per_node, policy, settings, changes)


def theirs(case: Case, schedule: str, args: argparse.Namespace, folder: Path) -> list[str]:
    """The command."""
    spec = args.refs / f"inputs/tiresias/cluster_specs/c{case.shape}.csv"
    if not spec.exists():
        spec = folder / f"c{case.shape}.csv"
        header = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node"
        spec.write_text(f"{header}\n{case.shape.replace('x', ',')},64,256\n")
    words = [args.python2, "run_sim.py", f"--cluster_spec={spec}", f"--trace_file={case.trace}"]
    return [*words, "--scheme=count", f"--schedule={schedule}", f"--log_path={folder}/log"]


def place(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Where it runs."""
    return {"cwd": args.tiresias / "simulator", "env": environment(PYTHONPATH=str(folder / "stubs"))}


def completion_times(folder: Path) -> list[float]:
    """Of the jobs that had ended in their run, also in one that was stopped: each has its line at once."""
    path = folder / "log" / "job.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [float(row["JCT"]) for row in csv.DictReader(file) if row["JCT"] and row["promote"]]


def compare(case: Case, schedule: str, args: argparse.Namespace, folder: Path) -> Row:
    """One line of the table: the best of the repetitions, alternating."""
    their_cpu, our_cpu, simulation_cpu = [], [], []
    simulation = ours(case, schedule, args.refs / "inputs/tiresias")
    for _ in range(args.repeat):
        their_cpu.append(spent(theirs(case, schedule, args, folder), **place(args, folder)).cpu_seconds)
        run = simulation.command()
        our_cpu.append(run.cpu_seconds)
        simulation_cpu.append(simulation.alone()[0])
    jcts = completion_times(folder)
    return Row(
        case.name,
        schedule,
        min(their_cpu),
        min(our_cpu),
        min(simulation_cpu),
        sum(jcts) / len(jcts),
        json.loads(run.printed)["avg_jct_seconds"],
    )


def whole_philly(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """82,247 jobs on 512 GPUs under dlas-gpu. Theirs would take hours: it is stopped when it has used
    `--times` the CPU time of ours."""
    from controller.simulation.traces import read_trace

    trace = folder / "philly_job.csv"
    jobs = read_trace(args.refs / "inputs/philly/philly.csv.gz", "philly")
    lines = ["job_id,num_gpu,submit_time,iterations,model_name,duration,interval"]
    before = 0
    for number, job in enumerate(jobs):
        submit, duration = int(job.submit_seconds), max(1, int(job.duration_seconds or 0))
        lines.append(f"{number},{job.gpus},{submit},{duration},resnet50,{duration},{submit - before}")
        before = submit
    trace.write_text("\n".join(lines) + "\n")
    case = Case("whole Philly trace", trace, "1x64x8", ("dlas-gpu",))
    run = ours(case, "dlas-gpu", args.refs / "inputs/tiresias").command()
    ended = f"{json.loads(run.printed)['completed']} of {len(jobs)} jobs ended"
    yield f"ours: {run.cpu_seconds:.1f} s CPU, {run.wall_seconds:.1f} s wall; {ended}"
    limit = math.ceil(args.times * run.cpu_seconds)
    words = ["prlimit", f"--cpu={limit}", *theirs(case, "dlas-gpu", args, folder)]
    begin = time.perf_counter()
    done = subprocess.run(
        words, **place(args, folder), capture_output=True, check=False, timeout=LIMIT_SECONDS
    )
    wall_seconds = time.perf_counter() - begin
    ended = f"{len(completion_times(folder))} of {len(jobs)} jobs ended"
    took = f"{limit} s CPU ({wall_seconds:.0f} s wall); {ended}"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        yield f"theirs: not at its end, stopped after {took}"
    else:
        yield f"theirs: ended with status {done.returncode} within {took}"


def missing(args: argparse.Namespace) -> str:
    """What is not there; empty: nothing."""
    if args.tiresias is None or not (args.tiresias / "simulator" / "run_sim.py").is_file():
        return f"no checkout of SymbioticLab/Tiresias at {args.tiresias} (--tiresias or GANDIVA_TIRESIAS)"
    if not (args.refs / "inputs/tiresias").is_dir():
        return f"no references in {args.refs} (--refs or GANDIVA_REFS)"
    if shutil.which(args.python2) is None:
        return f"no Python 2.7 {args.python2!r} (--python2 or GANDIVA_PYTHON2)"
    try:
        described(args.python2)
    except OSError as error:
        return f"{args.python2} does not run ({error})"
    return ""


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    checkout = os.environ.get("GANDIVA_TIRESIAS")
    parser.add_argument("--tiresias", type=Path, default=Path(checkout) if checkout else None, metavar="DIR")
    parser.add_argument("--python2", default=os.environ.get("GANDIVA_PYTHON2", "python2.7"))
    parser.add_argument("--refs", type=Path, default=references(), metavar="DIR")
    parser.add_argument("--only", default="", metavar="REGEX", help="of `trace/schedule`, or philly")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="alternating; the best counts")
    parser.add_argument("--times", type=float, default=5.0, help="with philly: what theirs may take of ours")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Status 0, too, when there is nothing to compare with, which is said."""
    args = parsed(arguments)
    if problem := missing(args):
        print(f"{NOT_COMPARED}: {problem}")
        return 0
    print(f"Ours: {described(sys.executable)}; theirs: {described(args.python2)}.", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stub, text in STUBS.items():
            path = folder / "stubs" / stub
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if args.only == "philly":
            for line in whole_philly(args, folder):
                print(line, flush=True)
            return 0
        rows = []
        print(HEADER, flush=True)
        for case in cases(args.refs / "inputs/tiresias"):
            for schedule in case.schedules:
                if re.search(args.only, f"{case.name}/{schedule}"):
                    rows.append(compare(case, schedule, args, folder))
                    print(rows[-1], flush=True)
        print(f"\n{outcome(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
