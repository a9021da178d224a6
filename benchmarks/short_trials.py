# SPDX-License-Identifier: GPL-2.0-or-later
"""What short trials cost besides their own work, beside HyperQueue: `python -m benchmarks.short_trials`.

The same commands, `sleep 1`, run one way after the other: as plain child processes, four at a time; with
HyperQueue; and with `gandiva run` on four mock GPUs of this machine. CPU time is that of all processes of
each way, those that have ended included; what the plain ones take is the trials' own. HyperQueue's package
from PyPI is its Python API alone: server and worker are threads of one process, and its worker has cores and
no GPUs, so a trial takes one of four cores in place of one of four GPUs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workstation import workstation
from controller.run.command import SHELL

GPUS = 4
COMMAND = "sleep 1"
PLAIN = 100
"""So many trials as plain child processes."""
LIMIT_CPU_SECONDS, LIMIT_BYTES = 0.05, 150e6
HYPERQUEUE = "hyperqueue==0.27.0"
ENVIRONMENT = "GANDIVA_HYPERQUEUE_PYTHON"
LOOK_SECONDS = 0.1
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_TICKS = os.sysconf("SC_CLK_TCK")

# Runs in a Python that has HyperQueue, in the folder for the output of the tasks.
HYPERQUEUE_RUN = """
import os, sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.protocol import ResourceRequest
count, slots, *command = sys.argv[1:]
with LocalCluster(os.path.abspath("server"), WorkerConfig(cores=int(slots))) as cluster:
    job = Job("output", max_fails=None)
    for _ in range(int(count)):
        job.program(command, resources=ResourceRequest(cpus=1))
    client = cluster.client()
    client.wait_for_jobs([client.submit(job)])
"""


@dataclass(frozen=True)
class Cost:
    """Of one way to run trials."""

    trials: int
    wall_seconds: float
    cpu_seconds: float
    """Of all its processes, the trials' own included."""
    main_cpu_seconds: float
    """Of its first process alone: the supervisor, or HyperQueue's server and worker."""
    peak_bytes: int
    """Resident memory of that process, at most."""
    load: float
    """Of the machine, in the last minute."""

    def beyond(self, plain: Cost) -> float:
        """CPU seconds of a trial that are not its own."""
        return self.cpu_seconds / self.trials - plain.cpu_seconds / plain.trials


def measure(trials: int, start: Callable[[], subprocess.Popen[bytes]], said: Path) -> Cost:
    """Wait for what is started, and for all that it leaves behind. `said`: printed where it fails.

    Raises subprocess.CalledProcessError: it has failed.
    """
    # What is orphaned becomes a child of ours: its time is in none of the others.
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, begin = _children_cpu_seconds(), time.monotonic()
    process = start()
    main, peak = 0.0, 0
    while not (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        main, peak = _main(process.pid, main, peak)
        time.sleep(LOOK_SECONDS)
    wall = time.monotonic() - begin
    process.wait()
    if ended.si_status:
        print(said.read_text()[-2000:], file=sys.stderr)
        raise subprocess.CalledProcessError(ended.si_status, process.args)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    return Cost(trials, wall, _children_cpu_seconds() - before, main, peak, os.getloadavg()[0])


def _main(pid: int, cpu_seconds: float, peak_bytes: int) -> tuple[float, int]:
    """CPU time and highest resident memory of a process; as before where it has just ended."""
    folder = Path("/proc", str(pid))
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    for line in (folder / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return (int(fields[11]) + int(fields[12])) / _TICKS, int(line.split()[1]) << 10
    return cpu_seconds, peak_bytes


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plain(trials: int) -> Cost:
    """As child processes of ours, as many at a time as there are GPUs."""
    before, begin = _children_cpu_seconds(), time.monotonic()
    with ThreadPoolExecutor(GPUS) as threads:
        list(threads.map(lambda _: subprocess.run([SHELL, "-c", COMMAND], check=True), range(trials)))
    wall, cpu = time.monotonic() - begin, _children_cpu_seconds() - before
    return Cost(trials, wall, cpu, 0.0, 0, os.getloadavg()[0])


def with_gandiva(trials: int, policy: str) -> Cost:
    """Raises subprocess.CalledProcessError."""
    with workstation(GPUS) as here:
        words = ("--study", "short", "--policy", policy)
        return measure(trials, lambda: here.run(*words, given=f"{COMMAND}\n" * trials), here.said)


def with_hyperqueue(trials: int, python: str) -> Cost:
    """`python`: one that has it; empty: it is installed. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="gandiva-hyperqueue-") as name:
        if not python:
            subprocess.run([sys.executable, "-m", "venv", f"{name}/venv"], check=True)
            python = f"{name}/venv/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", HYPERQUEUE], check=True)
        words = [python, "-c", HYPERQUEUE_RUN, str(trials), str(GPUS), SHELL, "-c", COMMAND]
        with Path(name, "said").open("w+b") as said:
            options: dict[str, Any] = {"cwd": name, "stdout": said, "stderr": said}
            return measure(trials, lambda: subprocess.Popen(words, **options), Path(said.name))


def _table(costs: dict[str, Cost]) -> Table:
    table = Table("", "trials", "wall", "CPU per trial", "beyond its own", "of it main", "peak", "load")
    own = costs["plain child processes"]
    for name, cost in costs.items():
        table.add_row(
            name,
            str(cost.trials),
            f"{cost.wall_seconds:.1f} s",
            f"{cost.cpu_seconds / cost.trials * 1e3:.1f} ms",
            f"{cost.beyond(own) * 1e3:.1f} ms",
            f"{cost.main_cpu_seconds / cost.trials * 1e3:.1f} ms",
            f"{cost.peak_bytes / 1e6:.0f} MB",
            f"{cost.load:.1f}",
        )
    return table


def main() -> int:
    """Measure and print; the exit status is 1 where a limit is passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="(%(default)s)")
    parser.add_argument("--policy", default="gandiva", help="of gandiva run (%(default)s)")
    parser.add_argument(
        "--hyperqueue",
        metavar="PYTHON",
        default=os.environ.get(ENVIRONMENT, ""),
        help=f"has it (default: ${ENVIRONMENT}, else {HYPERQUEUE} is installed for the moment)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    costs = {"plain child processes": plain(min(PLAIN, options.trials))}
    costs["HyperQueue"] = with_hyperqueue(options.trials, options.hyperqueue)
    ours = costs["gandiva run"] = with_gandiva(options.trials, options.policy)
    if options.json:
        print(json.dumps({name: asdict(cost) for name, cost in costs.items()}))
    else:
        Console().print(_table(costs))
    within = ours.beyond(costs["plain child processes"]) < LIMIT_CPU_SECONDS
    return int(not within or ours.peak_bytes > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
