# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.faults`: faults on a real Slurm in containers (docs/reliability.md)."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from container import engine, images
from container.cluster import MiniCluster
from container.errors import MiniClusterError
from tests.faults import catalogue
from tests.faults.fault import Fault, Result
from tests.faults.report import Run, write
from tests.faults.runner import rounds, run
from tests.faults.stage import Stage
from tests.faults.workload import SPEC

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = 3
"""The machine waits most of the time: several clusters at once take little longer than one."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose name contains all of these")
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--light", action="store_true", help="of these, those that take less than a minute")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--keep", action="store_true", help="leave the clusters running")
    parser.add_argument(
        "--cluster",
        default="faults",
        metavar="NAME",
        help="name of the mini cluster, the others are NAME-2 and so on; used as they are where they run",
    )
    parser.add_argument(
        "--clusters",
        type=int,
        metavar="N",
        default=CLUSTERS,
        help=f"faults run on at most so many mini clusters at once ({CLUSTERS})",
    )
    parser.add_argument(
        "--write", action="store_true", help="put the results of the whole catalogue into docs/reliability.md"
    )
    args = parser.parse_args()
    if args.write and (args.quick or args.light or args.words):
        parser.error(
            "--write takes the results of a whole run only: leave out --quick, --light and the words"
        )
    if args.clusters < 1:
        parser.error(f"--clusters {args.clusters}: expected 1 or more")
    chosen = catalogue.light if args.light else catalogue.quick if args.quick else catalogue.every
    faults = catalogue.matching(chosen(), args.words)
    if args.list:
        print("\n".join(fault.name for fault in faults))
        return 0
    console = Console()
    alone = (Path(tempfile.gettempdir()) / f"gandiva-faults-{args.cluster}.lock").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another run has the mini cluster {args.cluster}: end it, or choose another name (--cluster)")
        return 2
    number = min(args.clusters, len(rounds(faults)) or 1)
    began, commit = time.monotonic(), _commit()
    names = [args.cluster, *(f"{args.cluster}-{n}" for n in range(2, number + 1))]
    with _clusters(names, console, keep=args.keep) as clusters:
        results = _run(clusters, faults, console)
    seconds = time.monotonic() - began
    failed = [r for r in results if not r.passed]
    for result in failed:
        console.print(
            f"FAILED {result.fault.name}\n       {result.evidence}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"faults: {seconds:.0f} s", highlight=False)
    left_out = len(faults) - len(results)
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed, {left_out} not run")
    if args.write and left_out:
        print("docs/reliability.md is as it was: the run is not complete")
    elif args.write:
        write(results, Run(commit, datetime.datetime.now(tz=datetime.timezone.utc).date(), seconds, number))
    return 1 if failed or left_out or not results else 0


def _commit() -> str:
    """What is under test."""
    command = ["git", "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    return done.stdout.strip() or "unknown"


@contextlib.contextmanager
def _clusters(names: list[str], console: Console, *, keep: bool) -> Iterator[list[MiniCluster]]:
    """The running clusters of these names, and new ones, which are taken down at the end."""
    ours: list[MiniCluster] = []

    def one(name: str) -> MiniCluster:
        try:
            return MiniCluster.attach(name)
        except MiniClusterError:
            cluster = MiniCluster(SPEC.model_copy(update={"name": name}), report=console.print)
            ours.append(cluster)
            cluster.up()
            return cluster

    # Before all want it at once.
    images.Images(engine.connect(report=console.print), SPEC.release, console.print, ROOT).ensure()
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            yield list(pool.map(one, names))
    finally:
        if not keep:
            for cluster in ours:
                cluster.down()


def _run(clusters: list[MiniCluster], faults: list[Fault], console: Console) -> list[Result]:
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("preparing", total=sum(fault.times for fault in faults))

        def say(name: str) -> Callable[[str], None]:
            prefix = f"{name}: " if len(clusters) > 1 else ""

            def one(text: str) -> None:
                progress.update(task, description=f"{prefix}{text.splitlines()[0][:100]}")
                if not console.is_terminal:
                    print(f"{prefix}{text}", flush=True)

            return one

        def report(results: list[Result]) -> None:
            progress.advance(task, sum(result.fault.times for result in results))
            for result in results:
                if not result.passed:
                    text = f"FAILED {result.fault.name}: {result.evidence}"
                    progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

        stages = [Stage(cluster, say(cluster.name)) for cluster in clusters]
        return run(stages, faults, report)


if __name__ == "__main__":
    sys.exit(main())
