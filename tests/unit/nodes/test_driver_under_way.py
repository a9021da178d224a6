# SPDX-License-Identifier: GPL-2.0-or-later
"""A checkpoint call of another agent's is under way when an agent looks: newer drivers tell so."""

from __future__ import annotations

import subprocess

from controller.nodes.remote import RemoteNodes

from .conftest import NODE, Job, Rig, eventually
from .test_yield_and_resume import digests, prepare, resume

STEPS = ("--steps", "600", "--minibatch-ms", "50", "--memory-mb", "4096", "--state-kb", "8")


def begin_checkpoint(rig: Rig, job: Job) -> subprocess.Popen[bytes]:
    rig.cuda_checkpoint("lock", job.pid)
    tool = str(rig.libraries / "cuda-checkpoint")
    call = subprocess.Popen([tool, "--action", "checkpoint", "--pid", str(job.pid)], env=rig.environ)
    eventually("the checkpoint", lambda: '"state": "checkpointing"' in rig.mockgpu("show", "--json"))
    return call


def test_it_waits_for_the_end_of_the_call(rig: Rig) -> None:
    undisturbed = rig.start(1, *STEPS, gpus="3", managed=False)
    digest = digests(undisturbed.wait())
    rig.mockgpu("init", "--gpus", "4", "--node", NODE, "--jobs", "environment", "--copy-rate", "2GiB")

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [1], [1])
        job = rig.start(2, *STEPS, gpus="1", binding="1")
        rig.wait_for_steps(job, 3)
        earlier = begin_checkpoint(rig, job)
        done = await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        assert earlier.wait(timeout=60) == 0
        assert done.left_bytes == 0 and rig.held()[1] == 0
        await resume(nodes, 2, [1], [1])
        assert digests(job.wait()) == digest

    rig.run(scenario)
