# SPDX-License-Identifier: GPL-2.0-or-later
"""A cooperative job whose CUDA context stays on the GPU, as PyTorch's does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind, NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import CONTEXT_BYTES, MIB, NODE, ROOT, Job, Rig, eventually, job_sample, sample

KEEPS_ITS_CONTEXT = """
import sys
import gandiva
import mockcuda
mockcuda.init()
context = mockcuda.Context(0)
class State:
    def __init__(self): self.data, self.address = b"x" * 1000, 0
    def offload(self):
        self.data = context.copy_out(self.address, 1000)
        context.free(self.address)
        return 5 << 20
    def restore(self):
        self.address = context.alloc(64 << 20)
        context.copy_in(self.address, self.data)
state = State()
state.restore()
session = gandiva.attach(rank=0, world_size=int(sys.argv[1]))
session.register(state)
while True:
    context.step(2000, 50, state.address, 1000, 7)
    context.synchronize()
    session.step()
"""


def start(rig: Rig, job_id: int, world_size: int = 1) -> Job:
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPS_ITS_CONTEXT, str(world_size)],
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
    return job


async def run_and_pause(nodes: RemoteNodes, rig: Rig, world_size: int = 1) -> Job:
    await nodes.prepare(
        NODE, JobId(2), uid=os.getuid(), gpus=[0], binding=[0, 1, 2, 3], deadline_seconds=60.0
    )
    job = start(rig, 2, world_size)
    ranks = rig.run_dir / "2" / "ranks" / "0"
    eventually("the session", ranks.exists)
    while not (found := await job_sample(nodes, job)).ranks or found.ranks[0].steps_done < 3:
        assert job.processes[0].poll() is None
    floor_step = 0
    while not (
        paused := await nodes.pause(
            NODE, job.job_id, floor_step=floor_step, wait_seconds=60.0, sole=world_size == 1
        )
    ).all_blocked:
        floor_step = paused.target_step
    return job


def test_the_context_counts_and_is_kept_by_default(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        job = await run_and_pause(nodes, rig)
        with pytest.raises(NodeError) as refused:
            await nodes.offload(
                NODE, job.job_id, residual_limit_bytes=MIB, release_context=False, deadline_seconds=60.0
            )
        assert refused.value.kind == ErrorKind.LEFT_ON_GPU.value
        assert "400 MiB of job 2 stay on GPU 0, allowed are 1 MiB" in refused.value.message
        assert "reported by its sessions: 5 MiB by rank 0" in refused.value.message
        seen = await job_sample(nodes, job)
        assert seen.phase is NodePhase.RUNNING

        await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=60.0, sole=True)
        done = await nodes.offload(
            NODE,
            job.job_id,
            residual_limit_bytes=CONTEXT_BYTES,
            release_context=False,
            deadline_seconds=60.0,
        )
        assert done.left_bytes == CONTEXT_BYTES
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        seen = await job_sample(nodes, job)
        assert (seen.left_bytes, seen.movable) == (CONTEXT_BYTES, False)
        with pytest.raises(NodeError) as refused:
            await nodes.resume(NODE, job.job_id, gpus=[1], binding=[0, 1, 2, 3], deadline_seconds=60.0)
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value
        await nodes.resume(NODE, job.job_id, gpus=[0], binding=[0, 1, 2, 3], deadline_seconds=60.0)

    rig.run(scenario)


def test_the_driver_takes_the_context_off_too_and_then_the_job_can_move(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        job = await run_and_pause(nodes, rig)
        done = await nodes.offload(
            NODE, job.job_id, residual_limit_bytes=0, release_context=True, deadline_seconds=60.0
        )
        assert done.left_bytes == 0
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        assert rig.held()[0] == 0
        assert (await job_sample(nodes, job)).movable
        await nodes.resume(NODE, job.job_id, gpus=[3], binding=[0, 1, 2, 3], deadline_seconds=60.0)
        seen = await sample(nodes)
        assert seen.jobs[job.job_id].phase is NodePhase.RUNNING
        assert [gpu.memory_used_bytes > 64 * MIB for gpu in seen.gpus] == [False, False, False, True]
        at = seen.jobs[job.job_id].ranks[0].steps_done
        while (await job_sample(nodes, job)).ranks[0].steps_done < at + 3:
            assert job.processes[0].poll() is None

    rig.run(scenario)


def test_without_the_drivers_help_the_context_stays_and_counts(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        job = await run_and_pause(nodes, rig)
        rig.mockgpu("inject", "checkpoint-fail")
        done = await nodes.offload(
            NODE,
            job.job_id,
            residual_limit_bytes=CONTEXT_BYTES,
            release_context=True,
            deadline_seconds=60.0,
        )
        assert done.left_bytes == CONTEXT_BYTES
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        assert not (await job_sample(nodes, job)).movable
        rig.mockgpu("inject", "--clear")
        await nodes.resume(NODE, job.job_id, gpus=[0], binding=[0, 1, 2, 3], deadline_seconds=60.0)

    rig.run(scenario)


def test_a_rank_of_several_is_never_checkpointed_by_the_driver(rig: Rig) -> None:
    """The others may be on other nodes: what they share with it (NCCL) the driver cannot take away."""

    async def scenario(nodes: RemoteNodes) -> None:
        job = await run_and_pause(nodes, rig, world_size=2)
        done = await nodes.offload(
            NODE,
            job.job_id,
            residual_limit_bytes=CONTEXT_BYTES,
            release_context=True,
            deadline_seconds=60.0,
        )
        assert done.left_bytes == CONTEXT_BYTES
        await nodes.resume(NODE, job.job_id, gpus=[0], binding=[0, 1, 2, 3], deadline_seconds=60.0)
        with pytest.raises(NodeError, match="it has 2 ranks") as refused:
            await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value
        at = (await job_sample(nodes, job)).ranks[0].steps_done
        while (await job_sample(nodes, job)).ranks[0].steps_done < at + 3:
            assert job.processes[0].poll() is None

    rig.run(scenario)
