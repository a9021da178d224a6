# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.faults`: faults on a real Slurm in containers (docs/reliability.md)."""

from __future__ import annotations

import argparse
import fcntl
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from container.cluster import MiniCluster
from container.errors import MiniClusterError
from tests.faults import catalogue
from tests.faults.fault import Fault, Result
from tests.faults.report import Line, save, write
from tests.faults.runner import LOGS, run
from tests.faults.stage import Stage
from tests.faults.workload import SPEC

RESULTS = LOGS / "results.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose name contains all of these")
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument(
        "--cluster",
        default="faults",
        metavar="NAME",
        help="name of the mini cluster; used as it is where it runs",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the results, those of earlier runs of a part too, into docs/reliability.md",
    )
    args = parser.parse_args()
    faults = catalogue.matching(catalogue.quick() if args.quick else catalogue.every(), args.words)
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
    if not args.quick and not args.words:
        RESULTS.unlink(missing_ok=True)  # (not before it is sure that no other run is writing them)
    cluster, ours = _cluster(args.cluster, console)
    began = time.monotonic()
    try:
        results = _run(cluster, faults, console, not args.quick)
    finally:
        if ours and not args.keep:
            cluster.down()
    seconds = time.monotonic() - began
    if args.write:
        names = [fault.name for fault in catalogue.every()]
        write([Line.of(r) for r in results] if args.quick else save([], RESULTS, names))
    failed = [r for r in results if not r.passed]
    for result in failed:
        console.print(
            f"FAILED {result.fault.name}\n       {result.evidence}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"faults: {seconds:.0f} s", highlight=False)
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


def _cluster(name: str, console: Console) -> tuple[MiniCluster, bool]:
    """The running cluster of this name, or a new one; whether it is ours to take down."""
    try:
        cluster = MiniCluster.attach(name)
    except MiniClusterError:
        cluster = MiniCluster(SPEC.model_copy(update={"name": name}), report=console.print)
        cluster.up()
        return cluster, True
    return cluster, False


def _run(cluster: MiniCluster, faults: list[Fault], console: Console, keep: bool) -> list[Result]:
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("preparing", total=sum(fault.times for fault in faults))

        def say(text: str) -> None:
            progress.update(task, description=text.splitlines()[0][:100])
            if not console.is_terminal:
                print(text, flush=True)

        stage = Stage(cluster, say)
        stage.prepare()

        def report(results: list[Result]) -> None:
            progress.advance(task, sum(result.fault.times for result in results))
            for result in results:
                if not result.passed:
                    text = f"FAILED {result.fault.name}: {result.evidence}"
                    progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
            if keep:
                save(results, RESULTS, [fault.name for fault in catalogue.every()])

        try:
            return run(stage, faults, report)
        finally:
            stage.close()


if __name__ == "__main__":
    sys.exit(main())
