# SPDX-License-Identifier: GPL-2.0-or-later
"""Does the controller grow? 1,000 live jobs for 24 hours: `python -m benchmarks.growth`.

The daemon's own loop, executor, policy and journal (on disk, with pruning) run on virtual time, against a
simulated cluster that answers in full at each look, as the live adapters do. Jobs end and others take their
place all the time. Sampled every virtual quarter of an hour: resident memory, living objects, threads, file
descriptors and the journal's size. The status is 1 when any of them grew in the second half of the run by
more than its bound. The journal is given a retention of a sixth of the run, so that it too must have levelled
out by then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from controller.cluster.simulated import SimulatedCluster, SimulatedJob, SlurmCosts, make_nodes, request_text
from controller.journal import Journal
from controller.loop.loop import Controller
from controller.loop.pacing import PaceSettings
from controller.nodes.simulated import NodeCosts, SimulatedNodes
from controller.policies.allocations.worker import answers
from controller.settings.loading import parse_settings
from controller.simulation.virtual_time import VirtualClock, run_virtual
from controller.solver import ImmediateSolver

NODES = 64
GPUS_PER_NODE = 8
SIZES = ((1, 0.85), (2, 0.10), (4, 0.04), (8, 0.01))
WORK_SECONDS = (900.0, 14400.0)
SAMPLE_SECONDS = 900.0
MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """What the process was like at one virtual time."""

    hours: float
    resident_mib: float
    objects: float
    threads: float
    descriptors: float
    journal_mib: float


@dataclass(frozen=True)
class Bound:
    """How much something may grow over the second half of the run: a share of its mean, and a number."""

    name: str
    of: Callable[[Sample], float]
    share: float
    units: float


BOUNDS = (
    Bound("resident memory, MiB", lambda s: s.resident_mib, 0.03, 2.0),
    Bound("living objects", lambda s: s.objects, 0.03, 500.0),
    Bound("threads", lambda s: s.threads, 0.0, 0.5),
    Bound("file descriptors", lambda s: s.descriptors, 0.0, 0.5),
    Bound("journal, MiB", lambda s: s.journal_mib, 0.10, 1.0),
)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line with the least squares; 0 of fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def growth(samples: Sequence[Sample], of: Callable[[Sample], float]) -> tuple[float, float]:
    """(slope per hour, growth over the second half of the run), by its straight line."""
    half = samples[len(samples) // 2 :]
    per_hour = slope([(s.hours, of(s)) for s in half])
    return per_hour, per_hour * (half[-1].hours - half[0].hours)


class Run:
    """One run on virtual time."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._jobs: int = options.jobs
        self._seconds: float = options.hours * 3600
        self._interval_seconds: float = options.interval_seconds
        self._slice_seconds: float = options.slice_seconds
        self._random = random.Random(1)
        self._leak: list[bytearray] | None = [] if options.leak else None
        self.samples: list[Sample] = []
        self.cycles = 0
        self.switches = 0
        self.ended = 0

    async def main(self) -> None:
        """The whole run."""
        names = [f"n{number}" for number in range(NODES)]
        cluster = SimulatedCluster(
            {node.name: node for node in make_nodes(names, GPUS_PER_NODE)},
            SlurmCosts(0.005, 0.5, 0.2),
            keep_ended=False,
        )
        nodes = SimulatedNodes(cluster, NodeCosts(0.2, 0.1, 0.1))
        days = self._seconds / 86400 / 6
        with Journal(self._folder / "journal.sqlite", retention_days=days, detail_days=days / 2) as journal:
            controller = Controller(
                parse_settings(f"[policy.gandiva]\nslice_seconds = {self._slice_seconds}\n"),
                cluster,
                nodes,
                journal,
                VirtualClock(),
                solver=ImmediateSolver(answers),
                # Ends of operations that come within a second are looked at together: the live loop rests
                # between its cycles, which take no time here.
                pace=PaceSettings(interval_seconds=self._interval_seconds, coalesce_seconds=1.0),
                publish=lambda _cycle: self._count(),
            )

            def on_end(_job: SimulatedJob) -> None:
                self.ended += 1
                self._submit(cluster)

            cluster.on_end = on_end
            for _ in range(self._jobs):
                self._submit(cluster)
            stop = asyncio.Event()
            running = asyncio.create_task(controller.run(stop))
            begin = asyncio.get_running_loop().time()
            while (now := asyncio.get_running_loop().time() - begin) < self._seconds:
                self.samples.append(self._sample(now / 3600))
                await asyncio.sleep(SAMPLE_SECONDS)
                if running.done():
                    break
            stop.set()
            await running
            await controller.executor.drain(600)
        self.switches = nodes.switches
        if nodes.violations:
            raise RuntimeError(f"two jobs on one GPU: {nodes.violations[0]}")

    def _submit(self, cluster: SimulatedCluster) -> None:
        sizes = [size for size, _ in SIZES]
        gpus = self._random.choices(sizes, [weight for _, weight in SIZES])[0]
        user = self._random.choice(("alice", "bob", "carol", "dave", "erin"))
        cluster.submit(request_text(gpus), self._random.uniform(*WORK_SECONDS), user)

    def _count(self) -> None:
        self.cycles += 1
        if self._leak is not None:
            self._leak.append(bytearray(10_000))

    def _sample(self, hours: float) -> Sample:
        gc.collect()
        return Sample(
            hours=hours,
            resident_mib=int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / MIB,
            objects=len(gc.get_objects()),
            threads=threading.active_count(),
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            journal_mib=sum(file.stat().st_size for file in self._folder.iterdir()) / MIB,
        )


def main() -> int:
    """Run and print; 1 when something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000, help="live at any time (%(default)s)")
    parser.add_argument("--hours", type=float, default=24.0, help="of virtual time (%(default)s)")
    parser.add_argument(
        "--interval-seconds", type=float, default=30.0, help="loop.interval_seconds (%(default)s)"
    )
    parser.add_argument("--slice-seconds", type=float, default=60.0, help="(%(default)s)")
    parser.add_argument("--leak", action="store_true", help="leak on purpose, to see that it is noticed")
    options = parser.parse_args()
    console = Console()
    began, used = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options)
        run_virtual(run.main())
    seconds, processor = time.monotonic() - began, time.process_time() - used
    half = run.samples[len(run.samples) // 2 :]
    table = Table("", "after a quarter", "at half", "at the end", "slope per hour", "allowed per hour", "")
    failed = False
    for bound in BOUNDS:
        per_hour, grown = growth(run.samples, bound.of)
        mean = sum(bound.of(s) for s in half) / len(half)
        hours = (half[-1].hours - half[0].hours) or options.hours
        allowed = max(bound.share * mean, bound.units)
        failed |= grown > allowed
        table.add_row(
            bound.name,
            *(f"{bound.of(s):,.1f}" for s in (run.samples[len(run.samples) // 4], half[0], half[-1])),
            f"{per_hour:+,.3f}",
            f"{allowed / hours:,.3f}",
            "[red]grows[/red]" if grown > allowed else "ok",
        )
    console.print(table)
    console.print(
        f"{options.jobs} live jobs, {options.hours:g} h: {run.ended} ended, {run.switches} switches,"
        f" {run.cycles} cycles of the loop; {seconds:.0f} s, {processor:.0f} s of a processor",
        highlight=False,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
