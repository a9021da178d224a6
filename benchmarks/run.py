# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench`: all benchmarks, one after the other; `python benchmarks/run.py NAME …` runs some.

The comparisons with other people's simulators run in the mini cluster's image, with the Python that the
packages run on, whatever this one is. With --here they run in this one, and where no container can be had.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = {
    "step": ("benchmarks.step_overhead", "cost of session.step() when nothing is asked"),
    "plan": ("benchmarks.plan_time", "time of one decision, by cluster size"),
    "decisions": ("benchmarks.simulator", "one decision for 10,000 GPUs and 20,000 jobs, by policy"),
    "tiresias": (
        "benchmarks.peers.tiresias",
        "the simulator beside Tiresias' (GANDIVA_TIRESIAS: a clone)",
    ),
    "blox": ("benchmarks.peers.blox", "the simulator beside Blox (GANDIVA_BLOX: a clone)"),
    "gap": ("benchmarks.switch_gap", "GPU idle time at a switch, on a live mini cluster"),
}
IN_IMAGE = "benchmarks.peers.in_image"
COMPARISONS = ("tiresias", "blox")
NO_CONTAINER = os.EX_UNAVAILABLE
"""Its status when it ran nothing."""
LIMIT_SECONDS = 1800
ENDING_SECONDS = 30
"""For a benchmark to clean up after itself when it is interrupted."""


def run(*words: str) -> int:
    """A benchmark's status. It has ended when this returns or raises, and what it started too."""
    with subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT) as process:
        try:
            return process.wait(LIMIT_SECONDS)
        except BaseException as error:
            # (Of an interrupt the terminal has told it, too, and it is at that.)
            if not isinstance(error, KeyboardInterrupt) or not ends(process):
                process.terminate()
                ends(process)
            raise
        finally:
            process.kill()


def ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether it does so in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_SECONDS)
    return process.returncode is not None


def benchmark(name: str, here: bool) -> int:
    """The status of one by its name. Comparisons run in the image unless `here`, or where there is none."""
    if name in COMPARISONS and not here:
        status = run(IN_IMAGE, name)
        if status != NO_CONTAINER:
            return status
        print(
            f"No container, see above: {name} runs in this Python instead; "
            "with the one of the packages it may come out otherwise.",
            flush=True,
        )
    return run(BENCHMARKS[name][0])


def main() -> int:
    """Run them; the exit status is that of the first that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name}: {words}" for name, (_, words) in BENCHMARKS.items()),
    )
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help="default: all")
    parser.add_argument("--here", action="store_true", help="comparisons run in this Python")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    for name in args.names or list(BENCHMARKS):
        print(f"==> {name}: {BENCHMARKS[name][1]}", flush=True)
        try:
            status = benchmark(name, args.here)
        except subprocess.TimeoutExpired:
            print(f"{name}: no end after {LIMIT_SECONDS} s", flush=True)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
