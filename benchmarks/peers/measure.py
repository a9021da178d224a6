# SPDX-License-Identifier: GPL-2.0-or-later
"""Times of whole programs, theirs and ours, as CPU time, which other load disturbs less than wall time."""

from __future__ import annotations

import compileall
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
FIDELITY = ROOT / "benchmarks" / "fidelity"
REFERENCES = Path(os.environ.get("GANDIVA_REFS", ROOT.parent / "shared" / "refs"))
LIMIT_SECONDS = 3600.0
HEADER = (
    "| peer | case | policy | theirs CPU (wall) s | without start | ours CPU (wall) s | without start "
    "| theirs / ours | without starts | average JCT, theirs / ours (s) |\n" + "|---" * 10 + "|"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a simulator. Times in seconds."""

    cpu: float
    """Of the whole program, its children included."""
    wall: float
    simulation_cpu: float
    """Without starting the interpreter and its imports, where that is known; else `cpu`."""
    average_jct: float


@dataclass(frozen=True, slots=True)
class Case:
    """One trace on one cluster under one policy."""

    name: str
    policy: str
    """By their name."""
    theirs: Callable[[], Run]
    ours: Ours


@dataclass(frozen=True, slots=True)
class Row:
    """The best of the repetitions."""

    peer: str
    case: str
    policy: str
    theirs: Run
    ours: Run

    @property
    def programs(self) -> float:
        """CPU time of their program against that of ours."""
        return self.theirs.cpu / self.ours.cpu

    @property
    def simulations(self) -> float:
        """The same without the starts."""
        return self.theirs.simulation_cpu / self.ours.simulation_cpu

    def __str__(self) -> str:
        sides = [f"{r.cpu:.2f} ({r.wall:.1f}) | {r.simulation_cpu:.3f}" for r in (self.theirs, self.ours)]
        return (
            f"| {self.peer} | {self.case} | {self.policy} | {sides[0]} | {sides[1]} | {self.programs:.2f} "
            f"| {self.simulations:.2f} | {self.theirs.average_jct:.3f} / {self.ours.average_jct:.3f} |"
        )


def outcome(rows: Sequence[Row]) -> str:
    """The range of both ratios by peer. Rounded down, so that nothing looks better than it is."""
    sentences = []
    for peer in dict.fromkeys(row.peer for row in rows):
        of_peer = [row for row in rows if row.peer == peer]
        without = _range([row.simulations for row in of_peer])
        programs = _range([row.programs for row in of_peer])
        sentences.append(f"{peer}: {without} times our CPU time without starts, {programs} times with them.")
    return "\n".join(sentences)


def _range(ratios: Sequence[float]) -> str:
    return " to ".join(f"{math.floor(100 * ratio) / 100:.2f}" for ratio in (min(ratios), max(ratios)))


def compare(peer: str, case: Case, repeat: int) -> Row:
    """Theirs and ours, alternating; the quickest of each counts."""
    pairs = [(case.theirs(), case.ours.run()) for _ in range(repeat)]
    best = [min(runs, key=lambda run: run.cpu) for runs in zip(*pairs, strict=True)]
    return Row(peer, case.name, case.policy, *best)


@dataclass(frozen=True, slots=True)
class Ours:
    """A simulation of ours: `gandiva simulate` as a user runs it, and inside it the simulation alone."""

    trace: Path
    """In Tiresias' format."""
    cluster: str
    gpus_per_node: int
    policy: str
    settings: Path
    changes: tuple[str, ...] = ()

    def run(self) -> Run:
        """The whole program, and the simulation once more in a process of its own."""
        words = [sys.executable, "-m", "controller.cli.main", "simulate", "--json"]
        words += ["--trace", str(self.trace), "--trace-format", "tiresias"]
        words += ["--cluster", self.cluster, "--gpus-per-node", str(self.gpus_per_node)]
        words += ["--policy", self.policy, "--settings", str(self.settings)]
        for change in self.changes:
            words += ["--set", change]
        compiled()
        with StopWatch() as spent:
            printed = program(words, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)))
        alone = "import sys; from benchmarks.peers.measure import simulate; simulate(*sys.argv[1:])"
        of_it = [str(self.trace), self.cluster, str(self.gpus_per_node), self.policy, str(self.settings)]
        cpu = float(program([sys.executable, "-c", alone, *of_it, *self.changes], cwd=ROOT))
        return Run(spent.cpu, spent.wall, cpu, json.loads(printed)["avg_jct_seconds"])


def simulate(trace: str, cluster: str, gpus_per_node: str, policy: str, settings: str, *changes: str) -> None:
    """In a process of its own: print the CPU seconds of `Simulation.run`."""
    from controller.simulation.cluster_spec import parse_cluster
    from controller.simulation.configure import configure
    from controller.simulation.driver import Simulation
    from controller.simulation.traces import read_trace

    chosen = configure(Path(settings), policy, changes)
    jobs = read_trace(Path(trace), "tiresias")
    simulation = Simulation(Path(trace), jobs, parse_cluster(cluster, int(gpus_per_node)), chosen)
    begin = time.process_time()
    simulation.run()
    print(time.process_time() - begin)


class StopWatch:
    """Measures child processes that end within a `with` block."""

    def __enter__(self) -> Self:
        self._before, self._begin = self._children(), time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.cpu, self.wall = self._children() - self._before, time.perf_counter() - self._begin

    @staticmethod
    def _children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def program(words: list[str], **options: Any) -> str:
    """What it printed. Raises RuntimeError with what it said when it fails, TimeoutExpired after an hour."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=LIMIT_SECONDS, **options
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} {words[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def runs(python: str, code: str = "") -> bool:
    """Whether this Python is there and runs this code."""
    try:
        program([python, "-c", code], env=environment())
    except (OSError, RuntimeError):
        return False
    return True


def environment(**more: str) -> dict[str, str]:
    """That of a program, ours or theirs: with Python's compiled code kept, whatever is set here."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **more}


@cache
def compiled() -> None:
    """Compiles our code, as its installation does."""
    compileall.compile_dir(ROOT / "controller", quiet=2)
