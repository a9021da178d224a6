# SPDX-License-Identifier: GPL-2.0-or-later
"""What `session.step()` costs when nothing is asked.

    python benchmarks/step_overhead.py [--json]

Prints microseconds per call outside Slurm, with a control block, and with a loop's own cost for comparison.
The figure that counts is the middle one, and it must stay under 2 µs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gandiva
from gandiva import layout

CALLS = 200_000
ROUNDS = 15
LIMIT_US = 2.0


def microseconds(call: Callable[[], object]) -> dict[str, float]:
    """Median and worst of some rounds, per call."""
    rounds = [seconds / CALLS * 1e6 for seconds in timeit.repeat(call, number=CALLS, repeat=ROUNDS)]
    return {"median_us": round(statistics.median(rounds), 4), "worst_us": round(max(rounds), 4)}


def make_block(directory: Path) -> None:
    """A control block as the node agent makes it, on tmpfs where there is one."""
    (directory / "ranks").mkdir()
    record = layout.COMMAND.pack(layout.COMMAND_MAGIC, layout.VERSION, layout.Verb.RUN, 2, 0, 0, 0)
    (directory / "command").write_bytes(record.ljust(layout.RECORD_BYTES, b"\0"))


def nothing() -> None:
    """As cheap as a Python function gets."""


def measure() -> dict[str, dict[str, float]]:
    """All figures."""
    figures = {"an empty function": microseconds(nothing)}
    os.environ.pop("GANDIVA_CONTROL_DIR", None)
    figures["step() outside a Gandiva job"] = microseconds(gandiva.attach().step)
    directory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        make_block(directory)
        os.environ["GANDIVA_CONTROL_DIR"] = str(directory)
        session = gandiva.attach(rank=0, world_size=1)
        if not session.active:
            raise SystemExit("the session is not active: nothing to measure")
        figures["step() in a Gandiva job, nothing asked"] = microseconds(session.step)
        figures["step(samples=32) in a Gandiva job"] = microseconds(lambda: session.step(samples=32))
        session.finish()
    finally:
        shutil.rmtree(directory)
    return figures


def main() -> int:
    """0, or 1 when a figure is over the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        print(json.dumps({"calls": CALLS, "rounds": ROUNDS, "limit_us": LIMIT_US, "figures": figures}))
    else:
        print(f"step() overhead, {ROUNDS} rounds of {CALLS} calls, Python {platform.python_version()}")
        print(f"{'':42}  median   worst  (µs per call; limit {LIMIT_US})")
        for name, figure in figures.items():
            print(f"{name:42}  {figure['median_us']:6.3f}  {figure['worst_us']:6.3f}")
    return int(max(figure["median_us"] for figure in figures.values()) > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
