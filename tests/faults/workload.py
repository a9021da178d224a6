# SPDX-License-Identifier: GPL-2.0-or-later
"""The jobs that live through the faults: one kind for each way of taking a job off its GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from container.spec import ClusterSpec, NodeGroup
from tests.live.support import TRAIN

NODES = 3
SPEC = ClusterSpec(
    name="faults",
    nodes=(NodeGroup(names=f"n[1-{NODES}]", gpus=1),),
    slurm_conf=(
        "SchedulerParameters=bf_interval=5,sched_min_interval=0,batch_sched_delay=0,requeue_delay=1",
    ),
)
"""One GPU a node, so that two jobs on a node take turns. (More nodes, more agents: a controller that is
started again starts them all.) Slurm's pause after a requeue, two minutes, is not waited for."""

GPU_SECONDS = 4.0
_STEP_MS = 50
_TRAIN = f"{TRAIN} --minibatch-ms {_STEP_MS} --memory-mb 512 --log $HOME/$SLURM_JOB_ID.beat"

EMPTY_SCRIPT = "/shared/tmp/no-gpu-memory.py"
EMPTY_SOURCE = """\
import hashlib, json, os, pathlib, sys, time
beat = pathlib.Path.home() / f"{os.environ['SLURM_JOB_ID']}.beat"
state = b""
for _ in range(int(sys.argv[1])):
    time.sleep(0.1)
    state = hashlib.sha256(state).digest()
    with beat.open("a") as file:
        print(json.dumps({"time": time.time()}), file=file)
print("digest", state.hex(), flush=True)
"""
"""A job that asked for a GPU and never touches it (still loading its data, say)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of job; every job of it computes the same digest. It writes the time of each step into
    `$HOME/JOBID.beat`."""

    name: str
    nodes: tuple[str, ...]
    options: tuple[str, ...]
    _command: str
    moves: bool = False
    """It runs on any node, `nodes` says on how many, and migrates when it is told (`Stage.migrate`)."""
    store: bool = False
    """Its sessions have a checkpoint store, `$HOME/store-JOBID`."""
    waits: bool = False
    """It takes turns with another job on its node, and migrates while it is suspended."""

    def command(self, gpu_seconds: float = GPU_SECONDS) -> str:
        """For `sbatch --wrap`: work for so long when undisturbed."""
        store = " --store $HOME/store-$SLURM_JOB_ID" if self.store else ""
        return self.undisturbed(gpu_seconds) + store

    def undisturbed(self, gpu_seconds: float) -> str:
        """The same for a job without Gandiva."""
        return self._command.format(steps=self.steps(gpu_seconds), tenths=round(gpu_seconds * 10))

    def steps(self, gpu_seconds: float) -> int:
        """Mini-batches of a training that works for so long."""
        return round(gpu_seconds * 1000 / _STEP_MS)


COOPERATIVE = Workload(
    "cooperative", ("n1",), ("--gres=gpu:1", "-w", "n1"), f"exec {_TRAIN} --steps {{steps}}"
)
TRANSPARENT = Workload(
    "transparent",
    ("n2",),
    ("--gres=gpu:1", "-w", "n2", "--gandiva-suspend=transparent"),
    f"exec {_TRAIN} --no-step --steps {{steps}}",
)
EMPTY = Workload(
    "without GPU memory",
    ("n3",),
    ("--gres=gpu:1", "-w", "n3"),
    f"exec python3 {EMPTY_SCRIPT} {{tenths}}",
)
REQUEUED = Workload(
    "requeue",
    ("n3",),
    ("--gres=gpu:1", "-w", "n3", "--gandiva-suspend=requeue", "--requeue"),
    f"exec {_TRAIN} --steps {{steps}} --checkpoint-dir $HOME/ck-$SLURM_JOB_ID --checkpoint-every 10",
)
GANG = Workload(
    "gang on two nodes",
    ("n1", "n2"),
    ("--gres=gpu:1", "-N2", "--ntasks-per-node=1", "-w", "n1,n2"),
    f"exec srun {_TRAIN} --steps {{steps}}",
)
MIGRATING = Workload(
    "checkpoint store",
    ("n1",),
    ("--gres=gpu:1", "--open-mode=append"),
    f"exec {_TRAIN} --steps {{steps}}",
    moves=True,
    store=True,
)
SUSPENDED = replace(MIGRATING, name="suspended, checkpoint store", waits=True)
REQUEUED_ELSEWHERE = Workload(
    "own checkpoint",
    ("n1",),
    ("--gres=gpu:1", "--gandiva-suspend=requeue", "--requeue"),
    f"exec {_TRAIN} --steps {{steps}} --checkpoint-dir $HOME/ck-$SLURM_JOB_ID --checkpoint-every 10",
    moves=True,
)
STAYING = (COOPERATIVE, TRANSPARENT, EMPTY, REQUEUED, GANG)
WORKLOADS = (*STAYING, MIGRATING, SUSPENDED, REQUEUED_ELSEWHERE)
