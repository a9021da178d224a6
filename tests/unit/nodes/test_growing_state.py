# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of a job grows between two suspends: host memory is checked before each of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind, NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import NODE, ROOT, Job, Rig, eventually, job_sample

GROWS = """
import time
import gandiva
class State:
    state_bytes = 1000
    def offload(self): pass
    def restore(self): self.state_bytes = 1 << 49
session = gandiva.attach()
session.register(State())
while True:
    time.sleep(0.002)
    session.step()
"""
"""After its first suspend it has more state than any machine has memory."""


def start(rig: Rig) -> Job:
    process = subprocess.Popen(
        [sys.executable, "-c", GROWS],
        env={
            **rig.environ,
            "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": "2",
            "SLURMD_NODENAME": NODE,
            "GANDIVA_CONTROL_DIR": str(rig.run_dir / "2"),
        },
    )
    job = Job(rig, 2, [process], rig.folder / "none")
    rig.jobs.append(job)
    eventually("the session", (rig.run_dir / "2" / "ranks" / "0").exists)
    return job


async def suspend(nodes: RemoteNodes, job: Job) -> None:
    await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=60.0, sole=True)
    await nodes.offload(
        NODE, job.job_id, residual_limit_bytes=0, release_context=False, deadline_seconds=60.0
    )


def test_host_memory_is_checked_at_every_suspend(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await nodes.prepare(NODE, JobId(2), uid=os.getuid(), gpus=[0], binding=[0], deadline_seconds=60.0)
        job = start(rig)
        await suspend(nodes, job)
        await nodes.resume(NODE, job.job_id, gpus=[0], binding=[0], deadline_seconds=60.0)
        with pytest.raises(NodeError) as refused:
            await suspend(nodes, job)
        assert refused.value.kind == ErrorKind.HOST_MEMORY.value
        # It goes on as if nothing had been asked.
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        steps = (await job_sample(nodes, job)).ranks[0].steps_done
        while (await job_sample(nodes, job)).ranks[0].steps_done < steps + 3:
            assert job.processes[0].poll() is None

    rig.run(scenario)
