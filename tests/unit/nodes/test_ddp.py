# SPDX-License-Identifier: GPL-2.0-or-later
"""A job of two ranks with DistributedDataParallel: it leaves its GPUs in the middle, and learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.model import JobId
from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes
from tests.unit.jobside.need_torch import need_torch

from .conftest import NODE, PATIENCE_SECONDS, ROOT, Job, Rig, eventually, job_sample

torch: Any = need_torch()

RANKS = 2
STEPS = 60


def start(rig: Rig, folder: Path, job_id: int, buckets: str, *, managed: bool) -> Job:
    folder.mkdir()
    processes = []
    for rank in range(RANKS):
        environ = {
            **rig.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "CUDA_VISIBLE_DEVICES": str(rank),
            "SLURM_JOB_ID": str(job_id),
            "SLURMD_NODENAME": NODE,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
        }
        if managed:
            environ["GANDIVA_CONTROL_DIR"] = str(rig.run_dir / str(job_id))
        words = ["-m", "tests.unit.jobside.ddp_job", str(folder), str(STEPS), buckets]
        processes.append(subprocess.Popen([sys.executable, *words], env=environ, stdin=subprocess.DEVNULL))
    job = Job(rig, job_id, processes, folder / "none")
    rig.jobs.append(job)
    return job


def losses(folder: Path) -> list[list[str]]:
    return [
        [json.loads(line)["loss"] for line in (folder / f"rank{rank}.log").read_text().splitlines()]
        for rank in range(RANKS)
    ]


def finish(job: Job) -> None:
    assert [process.wait(PATIENCE_SECONDS) for process in job.processes] == [0] * RANKS


@pytest.mark.parametrize("buckets", ["view", "copy"])
def test_ddp_pauses_at_one_step_and_goes_on_with_the_same_losses(
    rig: Rig, tmp_path: Path, buckets: str
) -> None:
    """`view`: gradients are views of the buckets that only C++ holds otherwise."""
    finish(start(rig, tmp_path / "undisturbed", 1, buckets, managed=False))

    async def scenario(nodes: RemoteNodes) -> None:
        await nodes.prepare(
            NODE, JobId(2), uid=os.getuid(), gpus=[0, 1], binding=[0, 1], deadline_seconds=60.0
        )
        job = start(rig, tmp_path / "paused", 2, buckets, managed=True)
        logs = [tmp_path / "paused" / f"rank{rank}.log" for rank in range(RANKS)]
        eventually("some steps", lambda: all(log.exists() and len(log.read_text()) > 200 for log in logs))
        paused = await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=60.0, sole=True)
        assert paused.all_blocked
        assert [rank.steps_done for rank in paused.ranks] == [paused.target_step] * RANKS
        done = await nodes.offload(
            NODE, job.job_id, residual_limit_bytes=0, release_context=False, deadline_seconds=60.0
        )
        assert (done.left_bytes, done.stopped_step) == (0, paused.target_step)
        assert set(rig.held().values()) == {0}
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED
        assert [len(rank) for rank in losses(tmp_path / "paused")] == [paused.target_step] * RANKS
        assert 0 < paused.target_step < STEPS
        await nodes.resume(NODE, job.job_id, gpus=[0, 1], binding=[0, 1], deadline_seconds=60.0)
        finish(job)

    rig.run(scenario)
    assert losses(tmp_path / "paused") == losses(tmp_path / "undisturbed")
    assert [len(rank) for rank in losses(tmp_path / "paused")] == [STEPS] * RANKS
