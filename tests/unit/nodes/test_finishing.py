# SPDX-License-Identifier: GPL-2.0-or-later
"""A job whose turn ends between its session's `finish()` and the end of its process: it is no job without a
session, and what it has on the GPU goes with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from controller.errors import NodeError
from controller.nodes.port import NodePort
from controller.nodes.protocol import ErrorKind, Pause
from controller.nodes.remote import RemoteNodes

from .conftest import NODE, PATIENCE_SECONDS, ROOT, Job, Rig, eventually
from .test_yield_and_resume import prepare

FINISHES = """
import os, sys, time
import gandiva
import mockcuda
mockcuda.init()
context = mockcuda.Context(0)
context.alloc(64 << 20)
with gandiva.attach(rank=0, world_size=1) as session:
    session.step()
open(sys.argv[1] + "/finished", "w").close()
while not os.path.exists(sys.argv[1] + "/end"):
    time.sleep(0.01)
"""


def start(rig: Rig, job_id: int) -> Job:
    process = subprocess.Popen(
        [sys.executable, "-c", FINISHES, str(rig.folder)],
        env={
            **rig.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
            "SLURM_JOB_ID": str(job_id),
            "SLURMD_NODENAME": NODE,
            "CUDA_VISIBLE_DEVICES": "0",
            "GANDIVA_CONTROL_DIR": str(rig.run_dir / str(job_id)),
        },
    )
    job = Job(rig, job_id, [process], rig.folder / "none")
    rig.jobs.append(job)
    eventually("a session that has finished", (rig.folder / "finished").exists)
    return job


async def pause(nodes: NodePort, job: Job, wait_seconds: float, *, sole: bool = True) -> Pause:
    return await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=wait_seconds, sole=sole)


def test_a_job_that_is_about_to_end_is_waited_for(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2)
        asked = asyncio.create_task(pause(nodes, job, PATIENCE_SECONDS))
        await asyncio.sleep(0.5)
        assert not asked.done()
        (rig.folder / "end").touch()
        with pytest.raises(NodeError, match="no live session") as failure:
            await asked
        assert failure.value.kind == ErrorKind.NOT_COOPERATIVE and rig.held()[0] == 0
        assert job.processes[0].wait(PATIENCE_SECONDS) == 0
        # The controller goes on with this, and the job yields as one that has nothing on its GPU.
        assert (await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)).empty

    rig.run(scenario)


def test_one_that_goes_on_after_its_session_has_finished_is_named(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2)
        with pytest.raises(NodeError, match=rf"process {job.pid} .*finish\(\)") as failure:
            await pause(nodes, job, 0.3)
        assert failure.value.kind == ErrorKind.NOT_COOPERATIVE
        # Of a gang, the controller asks again until its own deadline.
        assert not (await pause(nodes, job, 0.1, sole=False)).all_blocked
        assert job.processes[0].poll() is None

    rig.run(scenario)
