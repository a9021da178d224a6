# SPDX-License-Identifier: GPL-2.0-or-later
"""The site of the soak: its cluster, its jobs, and those who submit them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from container.cluster import MiniCluster
from container.spec import ClusterSpec, NodeGroup, User

GPUS_PER_NODE: Final = 8
FOLDER: Final = "/shared/soak"
USERS: Final = ("alice", "bob", "carol", "dave", "erin")
MINIBATCH_MS: Final = 2000
SHORT_STEPS: Final[Mapping[int, int]] = {64: 60, 16: 25}
"""By nodes: mini-batches of a job that ends by itself. Two minutes on its GPUs, or, of three minutes of which
it has half, fifty seconds."""
ENDLESS_STEPS: Final = 1_000_000
SHORT_EVERY: Final = 10
"""Every so many jobs one is short."""

SIZES: Final[Mapping[int, Mapping[int, int]]] = {
    64: {1: 432, 2: 112, 4: 48, 8: 14, 16: 4},
    16: {1: 112, 2: 32, 4: 8, 8: 2, 16: 2},
}
"""By nodes: jobs by GPUs, 610 and 156 of them, which want twice the GPUs that there are."""

CONTROLLER: Final[Mapping[str, Any]] = {
    "nodes": {"connect_deadline_seconds": 90.0, "observe_deadline_seconds": 10.0},
    "loop": {"interval_seconds": 3.0},
}
"""Settings that are not the default ones. All 64 nodes are one machine with few processors here: 64 sshd and
agents start at the same time, and 64 agents looking once a second would take half of a processor."""


@dataclass(frozen=True)
class SoakJob:
    """A job that was submitted."""

    job_id: int
    user: str
    gpus: int
    steps: int

    @property
    def short(self) -> bool:
        """It ends by itself, with a digest that is known."""
        return self.steps < ENDLESS_STEPS


@dataclass(frozen=True)
class Wanted:
    """A job to be submitted."""

    user: str
    gpus: int
    steps: int

    def command(self, *, reference: bool = False) -> str:
        """As its user types it. `reference`: alone on its GPUs and as fast as can be, for its result."""
        shard = min(self.gpus, GPUS_PER_NODE)
        milliseconds = 1 if reference else MINIBATCH_MS
        train = f"python3 {FOLDER}/job.py {FOLDER} --steps {self.steps} --minibatch-ms {milliseconds}"
        # One memory size for all: two jobs that met on a GPU would not even run out of it, only be seen.
        train += f" --memory-mb 4096 --state-kb 4 --gpus {shard}"
        words = ["sbatch", "--parsable", "--mem=100M", f"--output={FOLDER}/output/%j", "--time=04:00:00"]
        words += ["--no-gandiva" if reference else "--gandiva", f"--gres=gpu:{shard}"]
        if self.gpus > GPUS_PER_NODE:
            words += ["-N", str(self.gpus // GPUS_PER_NODE), "--ntasks-per-node=1"]
            train = f"srun {train} --meeting {FOLDER}/meeting"
        return shlex.join([*words, f"--wrap=exec {train}"])


def spec(name: str, nodes: int) -> ClusterSpec:
    """Nodes with eight GPUs each, all of them in one container."""
    return ClusterSpec(
        name=name,
        nodes=(
            NodeGroup(
                names=f"m[1-{nodes}]",
                cpus=32,
                memory_mib=16384,
                gpus=GPUS_PER_NODE,
                nodes_per_container=nodes,
            ),
        ),
        users=tuple(
            User(name=user, uid=2001 + i, account="vision" if i < 3 else "speech")
            for i, user in enumerate(USERS)
        ),
    )


def waves(nodes: int) -> tuple[list[Wanted], list[Wanted]]:
    """Two waves of the same jobs. The first fills every GPU of so many nodes, the second shares them."""
    halves: list[list[Wanted]] = []
    number = 0
    for _ in range(2):
        half = []
        for gpus, count in SIZES[nodes].items():
            for _ in range(count // 2):
                number += 1
                steps = SHORT_STEPS[nodes] if number % SHORT_EVERY == 0 else ENDLESS_STEPS
                half.append(Wanted(USERS[number % len(USERS)], gpus, steps))
        halves.append(half)
    return halves[0], halves[1]


def submit(cluster: MiniCluster, wanted: Sequence[Wanted], *, reference: bool = False) -> list[SoakJob]:
    """Submit as the users do, several users at the same time."""
    found: list[SoakJob] = []
    for user in sorted({want.user for want in wanted}):
        mine = [want for want in wanted if want.user == user]
        script = "set -e\n" + "\n".join(want.command(reference=reference) for want in mine)
        ids = cluster.exec("login", script, user=user, timeout_seconds=300).stdout.split()
        if len(ids) != len(mine):
            raise RuntimeError(f"{len(mine)} jobs of {user} submitted, {len(ids)} answers")
        for job_id, want in zip(ids, mine, strict=True):
            found.append(SoakJob(int(job_id.split(";")[0]), user, want.gpus, want.steps))
    return found


def states(cluster: MiniCluster) -> dict[int, str]:
    """What slurmctld says of every job it knows."""
    text = cluster.exec("ctl", ["squeue", "-h", "-a", "-t", "all", "-o", "%A %T"], timeout_seconds=60).stdout
    return {int(job): state for job, state in (line.split() for line in text.splitlines())}


def on_all_nodes(command: str, nodes: Iterable[str]) -> str:
    """A shell loop that runs a command of the mock GPUs for every node of a host, after a line `@ NODE`."""
    names = " ".join(nodes)
    return f"for n in {names}; do echo @ $n; MOCKGPU_DIR=/var/lib/mockgpu/$n {command}; done"
