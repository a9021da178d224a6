# SPDX-License-Identifier: GPL-2.0-or-later
"""Times of commands and of our simulator, as CPU time, which other load disturbs less than wall time."""

from __future__ import annotations

import compileall
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIDELITY = ROOT / "benchmarks" / "fidelity"
LIMIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What a command took, and what it printed."""

    cpu_seconds: float
    """With its children."""
    wall_seconds: float
    printed: str


def spent(command: list[str], **options: Any) -> Spent:
    """Run it. Raises CalledProcessError with what it said when it fails, TimeoutExpired after an hour."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    options.setdefault("timeout", LIMIT_SECONDS)
    answer = subprocess.run(command, check=True, capture_output=True, text=True, **options)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(cpu_seconds, end - begin, answer.stdout)


def environment(**more: str) -> dict[str, str]:
    """That of a program, ours or theirs: with Python's compiled code kept, whatever is set here."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **more}


@cache
def compiled() -> None:
    """Compiles our code, as its installation does."""
    compileall.compile_dir(ROOT / "controller", quiet=2)


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
    trace_format: str = "tiresias"

    def command(self) -> Spent:
        """The whole program."""
        words = [sys.executable, "-m", "controller.cli.main", "simulate", "--json"]
        words += ["--trace", str(self.trace), "--trace-format", self.trace_format]
        words += ["--cluster", self.cluster, "--gpus-per-node", str(self.gpus_per_node)]
        words += ["--policy", self.policy, "--settings", str(self.settings)]
        for change in self.changes:
            words += ["--set", change]
        compiled()
        return spent(words, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)))

    def alone(self) -> tuple[float, float]:
        """CPU and wall seconds of the simulation, without starting the program and reading the trace."""
        program = "import sys; from benchmarks.peers.measure import simulate; simulate(*sys.argv[1:])"
        words = [str(self.trace), self.trace_format, self.cluster, str(self.gpus_per_node), self.policy]
        words += [str(self.settings), *self.changes]
        found = spent([sys.executable, "-c", program, *words], cwd=ROOT)
        cpu_seconds, wall_seconds = json.loads(found.printed)
        return cpu_seconds, wall_seconds


def simulate(
    trace: str, trace_format: str, cluster: str, gpus_per_node: str, policy: str, settings: str, *changes: str
) -> None:
    """In a process of its own: print CPU and wall seconds of `Simulation.run`."""
    from controller.simulation.cluster_spec import parse_cluster
    from controller.simulation.configure import configure
    from controller.simulation.driver import Simulation
    from controller.simulation.traces import read_trace

    chosen = configure(Path(settings), policy, changes)
    jobs = read_trace(Path(trace), trace_format)
    simulation = Simulation(Path(trace), jobs, parse_cluster(cluster, int(gpus_per_node)), chosen)
    cpu, wall = time.process_time(), time.perf_counter()
    simulation.run()
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]))


def references() -> Path:
    """The folder of reference inputs and results."""
    return Path(os.environ.get("GANDIVA_REFS", ROOT.parent / "shared" / "refs"))


_BUILD = """
import json, sys, sysconfig
read = sysconfig.get_config_var
words = [sys.version.split()[0], read("CONFIG_ARGS") or "", read("PGO_PROF_USE_FLAG") or ""]
sys.stdout.write(json.dumps(words))
"""
"""Also for Python 2."""


def described(python: str) -> str:
    """Its version, and whether it was built with optimisation, which is worth a tenth of the time or more.

    Raises:
        OSError: it does not run, or does not answer.
    """
    try:
        version, options, profile_flag = json.loads(spent([python, "-c", _BUILD], timeout=60).printed)
    except (subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
        raise OSError(said or f"no answer to `{python} -c …`") from error
    if "--enable-optimizations" in options:
        built = "built with --enable-optimizations"
    elif profile_flag:
        built = "built without --enable-optimizations"
    else:  # Debian optimises by its own rules, and takes their traces out of what it installs.
        built = "as its distribution builds it"
    return f"Python {version} ({built})"


def least(ratios: Sequence[float], wanted: float, digits: int) -> str:
    """How many of the cases reach what is wanted, and the smallest ratio: rounded down, so that no case
    that does not reach it looks as if it did."""
    reached = sum(ratio >= wanted for ratio in ratios)
    smallest = math.floor(min(ratios) * 10**digits) / 10**digits
    return f"{reached} of {len(ratios)} (least {smallest:.{digits}f} times)"
