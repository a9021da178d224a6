# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.fuzz [CASES] [TARGET...]`: what `make fuzz` runs. FUZZ_SEED chooses other cases."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.fuzz.registry import TARGETS
from tests.fuzz.target import run


def main(arguments: list[str]) -> int:
    """Runs all targets; the last line counts the cases. Exit status 1 when any failed."""
    cases = int(arguments[0]) if arguments else 10_000
    chosen = [target for target in TARGETS if not arguments[1:] or target.name in arguments[1:]]
    start = int(os.environ.get("FUZZ_SEED", "4"))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    weights = sum(target.weight for target in chosen)
    total, failed = 0, 0
    print(f"{'target':14} {'cases':>6} {'taken':>6} {'slowest':>8} {'memory':>8}  input", flush=True)
    for number, target in enumerate(chosen, 1):
        share = max(1, -(-cases * target.weight // weights))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = run(target, Path(folder), share, start)
        total += result.cases
        failed += bool(result.failure)
        print(
            f"{target.name:14} {result.cases:6} {result.accepted:6} {result.slowest_seconds * 1000:5.0f} ms "
            f"{result.grown_bytes >> 20:4} MiB  {target.what}"
            f" ({number}/{len(chosen)}, {time.monotonic() - began:.0f} s)",
            flush=True,
        )
        for goal in target.goals:
            print(f"{'':14} {target.marks[goal]:6} {goal}", flush=True)
        if result.failure:
            print(f"FAILED {target.name}: {result.failure}", flush=True)
    print(f"{total} cases, {len(chosen)} targets: {len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
