# SPDX-License-Identifier: GPL-2.0-or-later
"""`make demo`: nine training jobs of three users on eight GPUs, in turn, on a real Slurm in containers."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.live import Live
from rich.text import Text

from container.cluster import MiniCluster
from container.errors import MiniClusterError
from container.spec import ClusterSpec

NAME = "demo"
SLICE_SECONDS = 3.0
TRAIN = "python3 /opt/gandiva/src/examples/train_mock.py --minibatch-ms 100 --memory-mb 8192"


@dataclass(frozen=True)
class Submission:
    """One `sbatch` of the demo."""

    user: str
    name: str
    gpus: int
    weight: int
    steps: int

    @property
    def command(self) -> list[str]:
        """As the user types it."""
        return [
            "sbatch",
            "--parsable",
            f"--job-name={self.name}",
            "--gandiva",
            f"--gandiva-weight={self.weight}",
            f"--gres=gpu:{self.gpus}",
            "--mem=200M",
            "--output=%x-%j.out",
            f"--wrap={TRAIN} --steps {self.steps} --gpus {self.gpus}",
        ]


# Jobs of one size share nodes: four one-GPU jobs fill the first node, two two-GPU jobs the second. Two more
# one-GPU jobs then take turns with the first four, and the four-GPU job waits until a node is free.
SUBMISSIONS = [
    Submission("alice", "resnet-a", 1, 2, 150),
    Submission("alice", "resnet-b", 1, 1, 100),
    Submission("bob", "bert-tune", 1, 1, 100),
    Submission("carol", "wav2vec-s", 1, 1, 100),
    Submission("bob", "bert-large", 2, 1, 110),
    Submission("carol", "conformer", 2, 2, 125),
    Submission("bob", "bert-eval", 1, 1, 75),
    Submission("carol", "wav2vec-t", 1, 2, 75),
    Submission("alice", "gpt-small", 4, 1, 50),
]


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-seconds", type=float, default=240.0, help="give up after this (%(default)s)")
    options = parser.parse_args()
    console = Console()
    step = console.rule
    try:
        step("[bold]1. A Slurm cluster: two nodes with four mock GPUs each", align="left")
        cluster = bring_up(console)
        cluster.start_controller(
            {
                "loop": {"interval_seconds": 0.25},
                "policy": {"name": "gandiva", "gandiva": {"slice_seconds": SLICE_SECONDS}},
            }
        )
        console.print(
            f"The Gandiva controller runs on ctl, with slices of {SLICE_SECONDS:g} s (60 s in real life).\n"
        )

        step("[bold]2. Three users submit", align="left")
        jobs = submit_all(cluster, console)

        step("[bold]3. Live: which job is on which GPU (gandiva top)", align="left")
        watch(cluster, console, jobs, options.limit_seconds)

        step("[bold]4. The report (gandiva report)", align="left")
        columns = (
            "JobID%6,JobName%12,User%6,State%10,GPUs%4,Weight%6,"
            "RunTime%9,SuspTime%9,WaitTime%9,Slices%6,Share%6"
        )
        which = "--jobs=" + ",".join(map(str, jobs))
        print(cluster.exec("login", ["gandiva", "report", which, f"--format={columns}"], user="alice").stdout)
    except MiniClusterError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 1
    console.print(
        f"The cluster [bold]{NAME}[/bold] is still running. Look around:\n"
        f"  .venv/bin/gandiva-cluster sh login --name {NAME} --user alice\n"
        f"Remove it with:  .venv/bin/gandiva-cluster down --name {NAME}   (or make clean: everything)",
        highlight=False,
    )
    return 0


def bring_up(console: Console) -> MiniCluster:
    """A fresh cluster; that of an earlier demo makes way for it. (Its images stay, so this takes seconds.)"""
    cluster = MiniCluster(
        ClusterSpec(name=NAME), report=lambda line: console.print(f"  {line}", highlight=False)
    )
    cluster.down()
    cluster.up()
    return cluster


def submit_all(cluster: MiniCluster, console: Console) -> list[int]:
    """Submit everything; the job ids."""
    jobs = []
    for submission in SUBMISSIONS:
        shown = " ".join(
            w for w in submission.command if not w.startswith(("--parsable", "--mem", "--out", "--wrap"))
        )
        job_id = int(cluster.exec("login", submission.command, user=submission.user).stdout)
        console.print(
            f"  [cyan]{submission.user:>5}[/cyan]$ {shown} train.sh   [dim]-> job {job_id}[/dim]",
            highlight=False,
        )
        jobs.append(job_id)
    console.print()
    return jobs


def watch(cluster: MiniCluster, console: Console, jobs: list[int], limit_seconds: float) -> None:
    """Show `gandiva top` until all jobs have ended."""
    width = min(console.width, 110)
    deadline = time.monotonic() + limit_seconds
    frame = Text("")
    color = {"COLUMNS": str(width), "FORCE_COLOR": "1"} if console.is_terminal else {"COLUMNS": str(width)}
    # Into a file or a pipe: a frame now and then.
    interval_seconds = 0.5 if console.is_terminal else 10.0
    next_frame = 0.0
    with Live(frame, console=console, auto_refresh=False, transient=False) as live:
        while time.monotonic() < deadline:
            if time.monotonic() >= next_frame:
                next_frame = time.monotonic() + interval_seconds
                shown = cluster.exec(
                    "login", ["gandiva", "top", "--once"], user="alice", env=color, check=False
                ).stdout
                if shown.strip():
                    frame = Text.from_ansi(shown)
                if console.is_terminal:
                    live.update(frame, refresh=True)
                else:
                    print(frame.plain, flush=True)
            left = cluster.exec("ctl", ["squeue", "-h", "-o", "%A"], check=False).stdout.split()
            if not any(str(job) in left for job in jobs):
                return
            time.sleep(0.5)
    console.print("[yellow]Some jobs are still running; here is the report so far.[/yellow]")


if __name__ == "__main__":
    sys.exit(main())
