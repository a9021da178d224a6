# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a GPU idles at a switch: `python -m benchmarks.switch_gap`, on a live mini cluster, or `--trials`,
between two trials of `gandiva run` on a mock GPU of this machine, which needs no Slurm.

Two jobs take turns on one GPU. The gap is the time between the end of the last mini-batch of one and the
begin of the first mini-batch of the next, as the jobs themselves logged it. Beside it stands the floor, what
no scheduler of this kind can avoid: the copies of one job's state to the host and of the other's back, at the
rate of the mock GPUs, and two calls to Slurm (suspend one, resume the other), measured in the same run
through the same adapter. Trials need no call to Slurm: their floor is the copies alone. The mini-batch that
a job finishes before it leaves is useful work and counts for neither. With `--transformers` each job's
process has PyTorch, Transformers and a small model besides, whose tensors stand for a GPU's; without, it is a
small script.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.workstation import TRAIN as TRAIN_HERE
from benchmarks.workstation import workstation
from container.cluster import MiniCluster
from container.errors import MiniClusterError
from container.spec import ClusterSpec, NodeGroup

NAME = "bench"
EXAMPLES = "/opt/gandiva/src/examples"
TRAIN = f"python3 {EXAMPLES}/train_mock.py"
TRANSFORMERS = "transformers==5.24.0"
FOLDER = "/home/bench"
"""On all hosts: Transformers, and the process that uses it."""
TRAIN_TRANSFORMERS = f"env PYTHONPATH={FOLDER}:$PYTHONPATH python3 {FOLDER}/switch_process.py {EXAMPLES}"
INSTALL_SECONDS = 900.0
COPY_GIB_PER_SECOND = 12

# Runs inside ctl, as the controller's user: two jobs take turns without Gandiva, by calls to Slurm alone.
RPC_PROBE = """
import asyncio, json, sys, time
from controller.cluster.adapter import open_cluster
async def main():
    cluster = open_cluster("pyslurm", deadline_seconds=10.0)
    runs, rests = map(int, sys.argv[1:])
    await cluster.suspend(rests)
    times = []
    for _ in range(30):
        # The adapter keeps calls that undo each other a second apart; a slice is longer than that.
        await asyncio.sleep(1.2)
        begin = time.perf_counter()
        await cluster.suspend(runs)
        await cluster.resume(rests)
        times.append(time.perf_counter() - begin)
        runs, rests = rests, runs
    await cluster.resume(rests)
    await cluster.close()
    print(json.dumps(times))
asyncio.run(main())
"""


@dataclass(frozen=True)
class Step:
    """One mini-batch: begin and end, seconds since the epoch."""

    job_id: int
    begin: float
    end: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def gaps(steps: Sequence[Step]) -> list[float]:
    """Idle times of the GPU where the job on it changes."""
    ordered = sorted(steps, key=lambda s: s.begin)
    return [
        later.begin - earlier.end
        for earlier, later in itertools.pairwise(ordered)
        if earlier.job_id != later.job_id
    ]


def steps_in(log: str, job_id: int, minibatch_ms: float) -> list[Step]:
    """What a training has logged: a line at the end of each mini-batch, on the GPU for so long."""
    ends = [float(json.loads(line)["time"]) for line in log.splitlines()]
    return [Step(job_id, end - minibatch_ms / 1e3, end) for end in ends]


def words(minibatch_ms: float, memory_mb: int) -> str:
    """How each of the two trains."""
    return f"--steps 1000000 --minibatch-ms {minibatch_ms:g} --memory-mb {memory_mb}"


def measure_trials(seconds: float, slice_seconds: float, minibatch_ms: float, memory_mb: int) -> list[float]:
    """Gaps between two trials that are child processes, in seconds.

    Raises subprocess.CalledProcessError: the mock GPU cannot be compiled.
    """
    with workstation(1, f"{COPY_GIB_PER_SECOND}GiB") as here:
        study = here.folder / "gap.toml"
        study.write_text(
            f'[policy]\nname = "gandiva"\ngandiva.slice_seconds = {slice_seconds:g}\n'
            f'[trial]\ncommand = "{TRAIN_HERE} {words(minibatch_ms, memory_mb)} '
            f'--log {here.folder}/steps-{{number}}"\n[grid]\nnumber = [1, 2]\n'
        )
        process = here.run(study)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        process.wait()
        logs = {number: here.folder / f"steps-{number}" for number in (1, 2)}
        steps = [steps_in(log.read_text(), n, minibatch_ms) for n, log in logs.items() if log.exists()]
        return gaps([step for each in steps for step in each])


def install(cluster: MiniCluster) -> None:
    """Transformers for the hosts' own Python, and the process that uses it, to FOLDER.

    Raises:
        MiniClusterError, subprocess.SubprocessError: a step failed.
    """
    version = cluster.exec("login", ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    with tempfile.TemporaryDirectory(prefix="gandiva-switch-") as name:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--target={name}"]
        pip += [f"--python-version={version.stdout.strip()}", TRANSFORMERS]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as file:
            file.add(name, ".")
            for process in ("suspend_process.py", "switch_process.py"):
                file.add(Path(__file__).parent / process, process)
    unpack = f"mkdir -p {FOLDER} && tar -x -C {FOLDER} --no-same-owner && chmod -R a+rX {FOLDER}"
    cluster.exec("login", unpack, stdin=packed.getvalue(), timeout_seconds=INSTALL_SECONDS)


def measure(
    cluster: MiniCluster,
    command: str,
    seconds: float,
    slice_seconds: float,
    minibatch_ms: float,
    memory_mb: int,
) -> tuple[list[float], list[float]]:
    """Gaps, and times of the two calls to Slurm that a switch needs, in seconds."""
    filler = _submit(cluster, "alice", "sleep 3600", "--no-gandiva", "--gres=gpu:3", "-w", "n1")
    probes = [_submit(cluster, "alice", "sleep 3600", "--no-gandiva", "-w", "n2") for _ in range(2)]
    _await_running(cluster, filler, *probes)
    floor = json.loads(
        cluster.exec(
            "ctl", ["/opt/gandiva/venv/bin/python", "-", *map(str, probes)], user="gandiva", stdin=RPC_PROBE
        ).stdout
    )
    cluster.exec("ctl", ["scancel", *map(str, probes)])
    cluster.start_controller(
        {
            "loop": {"interval_seconds": 0.25},
            "policy": {"name": "gandiva", "gandiva": {"slice_seconds": slice_seconds}},
        }
    )
    train = f"{command} {words(minibatch_ms, memory_mb)} --log steps-$SLURM_JOB_ID"
    jobs = [
        _submit(cluster, user, f"exec {train}", "--gandiva", "--gres=gpu:1", "-w", "n1")
        for user in ("alice", "bob")
    ]
    time.sleep(seconds)
    steps: list[Step] = []
    for user, job in zip(("alice", "bob"), jobs, strict=True):
        steps += steps_in(cluster.read_file("login", f"/home/{user}/steps-{job}"), job, minibatch_ms)
    cluster.stop_controller()
    cluster.exec("ctl", ["scancel", *map(str, (filler, *jobs))])
    return gaps(steps), floor


def _submit(cluster: MiniCluster, user: str, command: str, *options: str) -> int:
    sbatch = ["sbatch", "--parsable", "--mem=2G", "--output=/dev/null", *options, "--wrap", command]
    return int(cluster.exec("login", sbatch, user=user).stdout)


def _await_running(cluster: MiniCluster, *jobs: int) -> None:
    deadline = time.monotonic() + 60
    wanted = {str(job) for job in jobs}
    while time.monotonic() < deadline:
        if wanted <= set(cluster.exec("ctl", ["squeue", "-h", "-t", "R", "-o", "%A"]).stdout.split()):
            return
        time.sleep(0.2)
    raise MiniClusterError(f"jobs {sorted(wanted)} do not start")


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long the two jobs take turns (%(default)s)"
    )
    parser.add_argument("--slice-seconds", type=float, default=1.5, help="(%(default)s)")
    parser.add_argument("--minibatch-ms", type=float, default=50.0, help="(%(default)s)")
    parser.add_argument("--memory-mb", type=int, default=4096, help="of each job (%(default)s)")
    parser.add_argument("--transformers", action="store_true", help="jobs are processes with Transformers")
    parser.add_argument("--keep", action="store_true", help="leave the cluster named bench running")
    parser.add_argument("--trials", action="store_true", help="of gandiva run, on this machine")
    options = parser.parse_args()
    console = Console()
    try:
        with console.status(f"two jobs take turns for {options.seconds:g} s"):
            idle, floor = _trials(options) if options.trials else _jobs(options, console)
    except (MiniClusterError, subprocess.SubprocessError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 1
    if len(idle) < 10:
        console.print(f"[red]error:[/red] only {len(idle)} switches were seen")
        return 1
    table = Table("", "count", "median", "p99", title="GPU idle time at a switch")
    copies = 2 * options.memory_mb / 1024 / COPY_GIB_PER_SECOND
    rows = {"gap": idle, "floor: copies of their state": [copies] * len(idle)}
    for name, values in (rows | floor).items():
        median, p99 = statistics.median(values), percentile(values, 0.99)
        table.add_row(name, str(len(values)), f"{median * 1e3:.0f} ms", f"{p99 * 1e3:.0f} ms")
    console.print(table)
    beyond = statistics.median(idle) - copies - sum(map(statistics.median, floor.values()))
    console.print(f"beyond the floor (medians, one run): {beyond * 1e3:.0f} ms", highlight=False)
    return 0


_Measured = tuple[list[float], dict[str, list[float]]]
"""Gaps, and what of them is floor besides the copies."""


def _trials(options: argparse.Namespace) -> _Measured:
    return measure_trials(options.seconds, options.slice_seconds, options.minibatch_ms, options.memory_mb), {}


def _jobs(options: argparse.Namespace, console: Console) -> _Measured:
    """Raises MiniClusterError, subprocess.SubprocessError."""
    cluster = MiniCluster(
        ClusterSpec(
            name=NAME,
            torch=options.transformers,
            nodes=(NodeGroup(gpu_copy_rate=f"{COPY_GIB_PER_SECOND}GiB"),),
        ),
        report=lambda line: console.print(f"  {line}", highlight=False),
    )
    try:
        cluster.down()  # of an earlier run with --keep
        cluster.up()
        command = TRAIN
        if options.transformers:
            command = TRAIN_TRANSFORMERS
            install(cluster)
        idle, calls = measure(
            cluster,
            command,
            options.seconds,
            options.slice_seconds,
            options.minibatch_ms,
            options.memory_mb,
        )
        return idle, {"floor: two calls to Slurm": calls}
    finally:
        if not options.keep:
            cluster.down()


if __name__ == "__main__":
    sys.exit(main())
