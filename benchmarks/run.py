# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench`: all benchmarks, one after the other; `python benchmarks/run.py NAME …` runs some."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = {
    "step": (["benchmarks.step_overhead"], "cost of session.step() when nothing is asked"),
    "plan": (
        ["benchmarks.plan_time", "--policies", "gandiva", "tiresias-las", "tiresias-gittins"],
        "one decision for 10,000 GPUs and 20,000 jobs, by policy (budget: p99 100 ms)",
    ),
    "moves": (
        ["benchmarks.plan_time", "--policies", "gandiva", "tiresias-las", "--moves", "pack", "defragment"],
        "the same with packing and defragmentation (budget: p99 100 ms)",
    ),
    "rounds": (
        ["benchmarks.plan_time", "--policies", "gavel-las", "--types", "5", "--gpus", "5000", "--events=3"],
        "one decision of an allocation for 10,000 jobs on five GPU types",
    ),
    "philly": (["benchmarks.simulator", "philly"], "the whole Philly trace (budget: 120 s)"),
    "scale": (["benchmarks.simulator", "scale"], "100,000 jobs on 10,000 GPUs (budget: 180 s)"),
    "turn": (
        ["benchmarks.overhead", "--sizes", "3000", "10000"],
        "a cycle with 3,000 and 10,000 jobs in a real slurmctld (budget: 5 % of a core when nothing happens)",
    ),
    "searches": (["benchmarks.searches"], "how soon a hyper-parameter search finds what it looks for"),
    "peers": (["benchmarks.peers"], "the simulator beside Tiresias' and Blox"),
    "store": (["benchmarks.checkpoint_store"], "the checkpoint store against the raw disk (aim: 0.9)"),
    "grow": (["benchmarks.grow"], "mean completion times of a public trace, with and without the move grow"),
    "suspend": (
        ["benchmarks.suspend"],
        "CPU time of a suspend with Transformers, beside an older commit (budget: 0.1 s; installs packages)",
    ),
    "gap": (["benchmarks.switch_gap"], "GPU idle time at a switch, on a live mini cluster"),
}
LIMIT_SECONDS = 3600


def main() -> int:
    """Run them; the exit status is that of the first that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name}: {words}" for name, (_, words) in BENCHMARKS.items()),
    )
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help="default: all")
    for name in parser.parse_args().names or list(BENCHMARKS):
        command, words = BENCHMARKS[name]
        print(f"==> {name}: {words}", flush=True)
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, timeout=LIMIT_SECONDS, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
