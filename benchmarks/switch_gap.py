# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a GPU idles at a switch, on a live mini cluster: `python -m benchmarks.switch_gap`.

Two jobs take turns on one GPU. The gap is the time between the end of the last mini-batch of one and the
begin of the first mini-batch of the next, as the jobs themselves logged it. Beside it stands the floor, what
no scheduler of this kind can avoid: the copies of one job's state to the host and of the other's back, at the
rate of the mock GPUs, and two calls to Slurm (suspend one, resume the other), measured in the same run
through the same adapter. The mini-batch that a job finishes before it leaves is useful work and counts for
neither. With `--transformers` each job's process has PyTorch,
Transformers and a small model besides, whose tensors stand for a GPU's; without, it is a small script.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
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


def install(cluster: MiniCluster) -> None:
    """Transformers for the hosts' own Python, and the process that uses it, to FOLDER.

    Raises:
        MiniClusterError, subprocess.SubprocessError: a step failed.
    """
    version = cluster.exec("login", ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    with tempfile.TemporaryDirectory(prefix="gandiva-switch-") as name:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--target={name}"]
        words = [*pip, f"--python-version={version.stdout.strip()}", TRANSFORMERS]
        subprocess.run(words, check=True, timeout=INSTALL_SECONDS)
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
    train = f"{command} --steps 1000000 --minibatch-ms {minibatch_ms:g} --memory-mb {memory_mb}"
    train += " --log steps-$SLURM_JOB_ID"
    jobs = [
        _submit(cluster, user, f"exec {train}", "--gandiva", "--gres=gpu:1", "-w", "n1")
        for user in ("alice", "bob")
    ]
    time.sleep(seconds)
    steps = []
    for user, job in zip(("alice", "bob"), jobs, strict=True):
        text = cluster.read_file("login", f"/home/{user}/steps-{job}")
        for line in text.splitlines():
            end = float(json.loads(line)["time"])
            steps.append(Step(job, end - minibatch_ms / 1e3, end))
    cluster.stop_controller()
    cluster.exec("ctl", ["scancel", *map(str, (filler, *jobs))])
    return gaps(steps), floor


def _submit(cluster: MiniCluster, user: str, command: str, *options: str) -> int:
    words = ["sbatch", "--parsable", "--mem=2G", "--output=/dev/null", *options, "--wrap", command]
    return int(cluster.exec("login", words, user=user).stdout)


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
    options = parser.parse_args()
    console = Console()
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
            with console.status("installing Transformers"):
                install(cluster)
        with console.status(f"two jobs take turns for {options.seconds:g} s"):
            idle, floor = measure(
                cluster,
                command,
                options.seconds,
                options.slice_seconds,
                options.minibatch_ms,
                options.memory_mb,
            )
    except (MiniClusterError, subprocess.SubprocessError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 1
    finally:
        if not options.keep:
            cluster.down()
    if len(idle) < 10:
        console.print(f"[red]error:[/red] only {len(idle)} switches were seen")
        return 1
    table = Table("", "count", "median", "p99", title="GPU idle time at a switch")
    copies = 2 * options.memory_mb / 1024 / COPY_GIB_PER_SECOND
    for name, values in (
        ("gap between two jobs", idle),
        ("floor: copies of their state", [copies] * len(idle)),
        ("floor: two calls to Slurm", floor),
    ):
        table.add_row(
            name,
            str(len(values)),
            f"{statistics.median(values) * 1e3:.0f} ms",
            f"{percentile(values, 0.99) * 1e3:.0f} ms",
        )
    console.print(table)
    beyond = statistics.median(idle) - copies - statistics.median(floor)
    console.print(f"beyond the floor (medians, one run): {beyond * 1e3:.0f} ms", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
