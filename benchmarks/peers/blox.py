# SPDX-License-Identifier: GPL-2.0-or-later
"""Our simulator beside Blox' on its cases of the references, in one run.

    python -m benchmarks.peers.blox --blox CHECKOUT --python PYTHON [--only REGEX] [--repeat N]

CHECKOUT is a clone of msr-fiddle/blox (commit c8851b2 was used), PYTHON one that has pandas < 2. That Blox
does here what it does by itself is checked: each job must end when its recorded result says.
`blox_rounds.py` tells what of Blox runs. Ours runs with `fidelity/blox.toml`, in rounds of the same length.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.measure import FIDELITY, Ours, references, spent

POLICIES = {"Fifo": "fifo", "Srtf": "srtf", "Las": "tiresias-las"}
TRACES = {"inputs/plain/xs.csv": "converted/xs_job.csv", "inputs/plain/t60.csv": "shipped/60_job.csv"}
"""The same jobs as plain CSV (for Blox) and in Tiresias' format (for ours)."""
HEADER = (
    "| case | policy | Blox CPU (wall) s | of it rounds | ours CPU (wall) s | of it simulation "
    "| whole programs | simulation alone | average JCT, Blox / ours (s) |\n" + "|---" * 9 + "|"
)


@dataclass(frozen=True, slots=True)
class Row:
    """The best of the repetitions, times in seconds."""

    case: str
    policy: str
    their_cpu: float
    their_wall: float
    their_rounds_cpu: float
    our_cpu: float
    our_wall: float
    our_simulation_cpu: float
    their_average_jct: float
    our_average_jct: float

    def __str__(self) -> str:
        return (
            f"| {self.case} | {self.policy} | {self.their_cpu:.2f} ({self.their_wall:.1f}) "
            f"| {self.their_rounds_cpu:.2f} | {self.our_cpu:.2f} ({self.our_wall:.1f}) "
            f"| {self.our_simulation_cpu:.3f} | {self.their_cpu / self.our_cpu:.0f} times "
            f"| {self.their_rounds_cpu / self.our_simulation_cpu:.0f} times "
            f"| {self.their_average_jct:.3f} / {self.our_average_jct:.3f} |"
        )


def different(recorded: dict[str, float], found: dict[str, float]) -> list[str]:
    """Jobs whose completion time is not the recorded one."""
    return sorted(i for i in recorded.keys() | found.keys() if recorded.get(i) != found.get(i))


def compare(case: dict[str, Any], recorded: dict[str, float], args: argparse.Namespace) -> Row:
    """One case under one policy. Raises SystemExit when Blox does not do what it did for the references."""
    rounds = [args.python, "-W", "ignore", str(Path(__file__).with_name("blox_rounds.py")), str(args.blox)]
    rounds += [str(args.refs / case["jobs"]), "--policy", case["policy"], "--nodes", str(case["nodes"])]
    rounds += ["--gpus-per-node", str(case["gpus_per_node"]), "--round", str(case["round_s"])]
    seconds = case["round_s"]
    simulation = Ours(
        args.refs / "inputs/tiresias" / TRACES[case["jobs"]],
        f"v100:{case['nodes'] * case['gpus_per_node']}",
        case["gpus_per_node"],
        POLICIES[case["policy"]],
        FIDELITY / "blox.toml",
        (f"simulation.round_seconds={seconds}", f"policy.tiresias-las.interval_seconds={seconds}"),
    )
    name = f"{case['case']} {case['policy']}"
    theirs, ours, alone = [], [], []
    for _ in range(args.repeat):
        run = spent(rounds)
        said = json.loads(run.printed)
        if wrong := different(recorded, said["jcts"]):
            raise SystemExit(f"{name}: Blox ends {len(wrong)} jobs at other times than recorded: {wrong[:9]}")
        theirs.append((run.cpu_seconds, run.wall_seconds, said["cpu_seconds"]))
        ours.append(simulation.command())
        alone.append(simulation.alone()[0])
    return Row(
        case["case"],
        case["policy"],
        min(cpu for cpu, _, _ in theirs),
        min(wall for _, wall, _ in theirs),
        min(cpu for _, _, cpu in theirs),
        min(run.cpu_seconds for run in ours),
        min(run.wall_seconds for run in ours),
        min(alone),
        said["avg_jct_seconds"],
        json.loads(ours[0].printed)["avg_jct_seconds"],
    )


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


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Status 0, too, when there is nothing to compare with, which is said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    checkout = os.environ.get("GANDIVA_BLOX")
    parser.add_argument("--blox", type=Path, default=Path(checkout) if checkout else None, metavar="DIR")
    parser.add_argument("--python", default=os.environ.get("GANDIVA_BLOX_PYTHON", sys.executable))
    parser.add_argument("--refs", type=Path, default=references(), metavar="DIR")
    parser.add_argument("--only", default="", metavar="REGEX", help="of `case/policy`")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="alternating; the best counts")
    args = parser.parse_args(arguments)
    if problem := missing(args):
        print(f"not compared with Blox: {problem}")
        return 0
    results = json.loads((args.refs / "results_public.json").read_text())["blox"]
    with gzip.open(args.refs / "per_job/per_job_jct_public.json.gz") as file:
        per_job = json.load(file)
    print(HEADER, flush=True)
    for case in results:
        if re.search(args.only, f"{case['case']}/{case['policy']}"):
            print(compare(case, per_job[case["per_job_key"]], args), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
