# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of several processes on a node, started as torchrun does it. Their CUDA contexts and communicators
stay on the GPUs while the jobs are off them: so much less is there for others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from controller.errors import NodeError
from controller.nodes.protocol import ErrorKind, NodePhase
from controller.nodes.remote import RemoteNodes
from controller.settings.schema import SuspendSettings

from .conftest import CONTEXT_BYTES, MIB, NODE, ROOT, Job, Rig, job_sample
from .test_yield_and_resume import digests, prepare, resume

COMMUNICATOR_BYTES = 600 * MIB
DEFAULT = SuspendSettings()
STEPS = ("--steps", "600", "--minibatch-ms", "50", "--memory-mb", "4096", "--state-kb", "64")


def launch(rig: Rig, job_id: int, ranks: int, *arguments: str, managed: bool = True) -> Job:
    """All ranks of a training below one launcher, each on its GPU."""
    gpus = ",".join(str(gpu) for gpu in range(ranks))
    environ = {
        **rig.environ,
        "SLURM_JOB_ID": str(job_id),
        "SLURMD_NODENAME": NODE,
        "CUDA_VISIBLE_DEVICES": gpus,
    }
    if managed:
        environ["GANDIVA_CONTROL_DIR"] = str(rig.run_dir / str(job_id))
    out = rig.folder / f"job{job_id}-%r.json"
    meeting = rig.folder / f"meeting{job_id}"
    meeting.mkdir()
    examples = ROOT / "examples"
    process = subprocess.Popen(
        [
            *(sys.executable, str(examples / "mockrun.py"), str(ranks), str(examples / "train_mock.py")),
            *("--keep-context", "--meeting", str(meeting), "--state-out", str(out), "--log", f"{out}.log"),
            *(*STEPS, *arguments),
        ],
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    rig.groups.append(process.pid)
    job = Job(rig, job_id, [process], out, ranks)
    rig.jobs.append(job)
    return job


async def leave(nodes: RemoteNodes, job: Job, limit: int = DEFAULT.residual_limit_bytes) -> int:
    await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=60.0, sole=True)
    done = await nodes.offload(
        NODE,
        job.job_id,
        residual_limit_bytes=limit,
        release_context=DEFAULT.release_context,
        deadline_seconds=60.0,
    )
    await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
    return done.left_bytes


@pytest.mark.parametrize("ranks", [2, 4])
def test_they_yield_and_return_with_default_settings(rig: Rig, ranks: int) -> None:
    expected = digests(launch(rig, 1, ranks, managed=False).wait())
    gpus = list(range(ranks))

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, gpus, gpus)
        job = launch(rig, 2, ranks)
        rig.wait_for_steps(job, 5)
        kept = CONTEXT_BYTES + COMMUNICATOR_BYTES
        assert await leave(nodes, job) == ranks * kept
        assert [rig.held()[gpu] for gpu in gpus] == [kept] * ranks
        seen = await job_sample(nodes, job)
        assert (seen.phase, seen.left_bytes, seen.movable) == (NodePhase.YIELDED, ranks * kept, False)

        await prepare(nodes, 3, [0], [0])
        other = rig.start(3, *STEPS, gpus="0", binding="0")
        assert digests(other.wait())
        await nodes.forget(NODE, other.job_id)

        await resume(nodes, 2, gpus, gpus)
        assert digests(job.wait()) == expected

    rig.run(scenario)


def test_what_others_keep_is_not_promised_to_a_job_that_comes_back(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        large = rig.start(2, *STEPS, "--memory-mb", "60000", gpus="0", binding="0")
        rig.wait_for_steps(large, 3)
        assert await leave(nodes, large) == 0

        await prepare(nodes, 3, [0], [0])
        keeper = rig.start(
            3, *STEPS, "--keep-context", "--communicators", "40", "--ranks", "1", gpus="0", binding="0"
        )
        rig.wait_for_steps(keeper, 3)
        kept = CONTEXT_BYTES + 40 * COMMUNICATOR_BYTES
        assert await leave(nodes, keeper, 30 << 30) == kept

        with pytest.raises(NodeError) as refused:
            await resume(nodes, 2, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        free, needed = (80 << 10) - (kept >> 20), 60000 + (CONTEXT_BYTES >> 20)
        assert f"GPU 0 has {free} MiB free, job 2 needs {needed} MiB" in refused.value.message
        assert f"other jobs have {kept >> 20} MiB there" in refused.value.message
        assert (await job_sample(nodes, large)).phase is NodePhase.YIELDED  # nothing was touched

        await resume(nodes, 3, [0], [0])
        assert digests(keeper.wait())
        await nodes.forget(NODE, keeper.job_id)
        await resume(nodes, 2, [0], [0])
        assert digests(large.wait())

    rig.run(scenario)
