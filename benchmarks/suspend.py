# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time of a suspend in a process with Transformers: `python -m benchmarks.suspend`.

What a session does until its state is off the GPU, beside that of an older commit: processes of both in
turn, with a real training with Transformers on the CPU (`benchmarks/suspend_process.py`). Such a process has
far more objects than the script that `benchmarks.switch_gap` runs, and a suspend looks for tensors among all
of them. PyTorch and Transformers are installed in a temporary folder, or `--python` names an environment that
has them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch==2.13.0", "transformers==5.24.0")
BESIDE = "8535fc0"
LIMIT_SECONDS = 0.1
"""From the second suspend on."""
PROCESS_SECONDS = 300.0
INSTALL_SECONDS = 1800.0


@dataclass(frozen=True)
class Suspends:
    """Those of one process: how many objects it had at the end, and the CPU seconds of each."""

    objects: int
    cpu_seconds: tuple[float, ...]


def measure(python: Path, sources: Path, count: int) -> Suspends:
    """One process, with the package `gandiva` in `sources`.

    Raises subprocess.SubprocessError where it fails or has no end.
    """
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks/suspend_process.py"), str(count)],
        env={**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=PROCESS_SECONDS,
        check=True,
    )
    found = json.loads(done.stdout)
    return Suspends(int(found["objects"]), tuple(map(float, found["seconds"])))


def older(commit: str, folder: Path) -> Path:
    """The job side as it was, in this folder. Raises subprocess.SubprocessError where git lacks it."""
    archive = subprocess.run(
        ["git", "archive", commit, "gandiva"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
        file.extractall(folder, filter="data")
    return folder


def installed(folder: Path) -> Path:
    """A Python with PACKAGES, in this folder. Raises subprocess.SubprocessError."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=PROCESS_SECONDS)
    python = folder / "bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES]
    subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
    return python


def table(results: Sequence[tuple[str, Sequence[Suspends]]]) -> Table:
    """First suspends, and all later ones, of each version."""
    made = Table("", "objects", "first suspend", "later: median", "worst", title="CPU time of a suspend")
    for name, found in results:
        first = [suspends.cpu_seconds[0] for suspends in found]
        made.add_row(
            name,
            f"{max(suspends.objects for suspends in found):,}",
            f"{statistics.median(first) * 1e3:.0f} ms",
            f"{statistics.median(later(found)) * 1e3:.1f} ms",
            f"{max(later(found)) * 1e3:.1f} ms",
        )
    return made


def later(found: Sequence[Suspends]) -> list[float]:
    """CPU seconds of all but the first of each process."""
    return [seconds for suspends in found for seconds in suspends.cpu_seconds[1:]]


def main() -> int:
    """Measure and print; the exit status is 1 where a later suspend takes longer than the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, help=f"a Python with {', '.join(PACKAGES)}")
    parser.add_argument("--beside", default=BESIDE, metavar="COMMIT", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each version (%(default)s)")
    parser.add_argument("--suspends", type=int, default=6, help="of each process (%(default)s)")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="gandiva-suspend-") as name:
        folder = Path(name)
        versions = [(options.beside, older(options.beside, folder / "older")), ("this one", ROOT)]
        python = options.python or installed(folder / "packages")
        results: list[tuple[str, list[Suspends]]] = [(version, []) for version, _ in versions]
        for _ in range(options.rounds):
            for (_, sources), (_, found) in zip(versions, results, strict=True):
                found.append(measure(python, sources, options.suspends))
    console.print(table(results))
    worst = max(later(results[-1][1]))
    console.print(f"limit from the second suspend on: {LIMIT_SECONDS * 1e3:.0f} ms", highlight=False)
    return int(worst > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
