# SPDX-License-Identifier: GPL-2.0-or-later
"""`make test` and `make nightly`: targets of the Makefile one after the other, and a table of them.

    python -m tests.parts test         what a change must pass
    python -m tests.parts nightly      all there is, for releases and for whoever touches what it covers

`test` runs all quick parts, and stops at the first part that fails after them; `nightly` runs all parts. The
last lines name what failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

QUICK: Final = ("lint", "unit")
PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "test": (*QUICK, "processes", "torch", "roles", "live", "smoke", "quick-faults"),
        "nightly": (*QUICK, "processes", "torch", "roles", "live", "smoke", "quick-faults", "quick-soak"),
    }
)
"""Targets of the Makefile."""
SHOWN_FAILURES: Final = 20
_TAIL_BYTES: Final = 1 << 16
_FAILED: Final = re.compile(rb"^(?:(?:SUB)?FAILED\S*|ERROR|error:) .*$", re.MULTILINE)
_SUMMARY: Final = re.compile(
    rb"^(?:=+ )?((?:\d+ (?:passed|failed|skipped|errors?|deselected)[, ]*)+).*$", re.MULTILINE
)


@dataclass
class Result:
    """What became of a part."""

    name: str
    seconds: float
    passed: bool
    summaries: list[str] = field(default_factory=list)
    """Of each run of pytest in it."""
    failures: list[str] = field(default_factory=list)
    """Lines that name what failed."""


def run(name: str, depth: str) -> Result:
    """Run a target, and show what it prints."""
    began = time.monotonic()
    process = subprocess.Popen(
        ["make", "--no-print-directory", name, f"DEPTH={depth}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    tail = bytearray()
    while piece := os.read(process.stdout.fileno(), _TAIL_BYTES):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        tail += piece
        del tail[:-_TAIL_BYTES]
    status = process.wait()
    texts = ([line.decode(errors="replace") for line in found.findall(tail)] for found in (_SUMMARY, _FAILED))
    summaries, failures = texts
    return Result(name, time.monotonic() - began, status == 0, [s.strip(", ") for s in summaries], failures)


def table(results: Sequence[Result], wanted: Sequence[str]) -> str:
    """A line for each part, those that did not run too."""
    width = max(len(name) for name in (*wanted, "all of it"))
    lines = [f"{'part':<{width}}  minutes  result"]
    for result in results:
        said = "; ".join(result.summaries) or ("passed" if result.passed else "")
        said = said if result.passed else f"FAILED {said}".strip()
        lines.append(f"{result.name:<{width}}  {_minutes(result.seconds)}  {said}")
    lines += [f"{name:<{width}}        -  not run" for name in wanted[len(results) :]]
    lines.append(f"{'all of it':<{width}}  {_minutes(sum(result.seconds for result in results))}")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60:4}:{whole % 60:02}"


def main() -> int:
    """Run them; the status is 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description="Run the tests, part by part.")
    parser.add_argument("depth", choices=sorted(PARTS))
    depth: str = parser.parse_args().depth
    wanted = PARTS[depth]
    results: list[Result] = []
    for name in wanted:
        if depth == "test" and name not in QUICK and not all(result.passed for result in results):
            break
        results.append(run(name, depth))
    failed = [result for result in results if not result.passed]
    print(f"\n{table(results, wanted)}\n")
    for result in failed:
        print(f"failed: make {result.name}")
        for line in result.failures[:SHOWN_FAILURES]:
            print(f"  {line}")
    print(f"parts: {len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
