# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs have memory on one GPU at the same time where the controller names them, and only then."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from checkpointing.cuda_driver import ProcessState
from controller.agent import returning
from controller.agent.control_block import CheckpointedProcess, JobState
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind, NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import CONTEXT_BYTES, MIB, NODE, Job, Rig, job_sample, sample
from .test_yield_and_resume import AT_ONCE, checkpoint, digests, offload, prepare, resume

MEMORY_MIB = 4096
STEPS = ("--steps", "1000", "--minibatch-ms", "30", "--memory-mb", str(MEMORY_MIB), "--state-kb", "8")
HELD_BYTES = MEMORY_MIB * MIB + CONTEXT_BYTES


async def busy(nodes: RemoteNodes, job_id: int, beside: tuple[int, ...] = ()) -> str:
    """What `prepare` says of a job that may not have GPU 0."""
    with pytest.raises(NodeError) as refused:
        await prepare(nodes, job_id, [0], [0], beside)
    assert refused.value.kind == ErrorKind.GPU_BUSY.value
    return refused.value.message


async def start_both(rig: Rig, nodes: RemoteNodes, *arguments: str) -> tuple[Job, Job]:
    """Job 2 on GPU 0, and job 3 beside it."""
    await prepare(nodes, 2, [0], [0])
    first = rig.start(2, *STEPS, *arguments, gpus="0", binding="0")
    rig.wait_for_steps(first, 3)
    await prepare(nodes, 3, [0], [0], beside=(2,))
    second = rig.start(3, *STEPS, *arguments, gpus="0", binding="0")
    rig.wait_for_steps(second, 3)
    return first, second


def test_a_job_that_is_named_may_be_there_and_no_other(rig: Rig) -> None:
    digest = digests(rig.start(1, *STEPS, *AT_ONCE, gpus="3", managed=False).wait())

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        first = rig.start(2, *STEPS, "--steps", "1500", gpus="0", binding="0")
        rig.wait_for_steps(first, 3)
        assert "job 2 is running on GPU 0" in await busy(nodes, 3)
        assert "job 2 is running on GPU 0" in await busy(nodes, 3, beside=(4,))
        await prepare(nodes, 3, [0], [0], beside=(2,))
        second = rig.start(3, *STEPS, gpus="0", binding="0")
        rig.wait_for_steps(second, 3)
        at = len(first.steps())
        rig.wait_for_steps(first, at + 3)
        seen = await sample(nodes)
        assert {process.job_id: process.memory_bytes for process in seen.gpus[0].processes} == {
            JobId(2): HELD_BYTES,
            JobId(3): HELD_BYTES,
        }
        assert [job.trespasses for job in seen.jobs.values()] == [(), ()]
        owners = (rig.gpustat / seen.gpus[0].uuid).read_text()
        assert owners == f"2 {os.getuid()}\n3 {os.getuid()}\n"
        assert "job 3 is running on GPU 0" in await busy(nodes, 4, beside=(2,))
        assert digests(second.wait()) == digest

    rig.run(scenario)


@pytest.mark.parametrize("way", ["sessions", "driver"])
def test_one_leaves_and_comes_back_while_the_other_runs_on(rig: Rig, way: str) -> None:
    arguments = ("--no-step",) if way == "driver" else ()
    digest = digests(rig.start(1, *STEPS, *arguments, *AT_ONCE, gpus="3", managed=False).wait())

    async def scenario(nodes: RemoteNodes) -> None:
        first, second = await start_both(rig, nodes, *arguments)
        if way == "driver":
            assert (await checkpoint(nodes, 2)).left_bytes == 0
        else:
            assert await offload(nodes, 2) == 0
        assert rig.held()[0] == HELD_BYTES, "the other job's memory only"
        assert (await job_sample(nodes, first)).phase is NodePhase.YIELDED
        at = len(second.steps())
        rig.wait_for_steps(second, at + 3)
        with pytest.raises(NodeError, match="job 3 is running on GPU 0"):
            await resume(nodes, 2, [0], [0])
        await resume(nodes, 2, [0], [0], beside=(3,))
        seen = await sample(nodes)
        assert {process.job_id for process in seen.gpus[0].processes} == {JobId(2), JobId(3)}
        assert [job.trespasses for job in seen.jobs.values()] == [(), ()]
        assert (digests(first.wait()), digests(second.wait())) == (digest, digest)

    rig.run(scenario)


def test_a_job_comes_back_only_where_its_memory_fits_beside_the_other(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        first = rig.start(2, *STEPS, "--memory-mb", "50000", gpus="0", binding="0")
        rig.wait_for_steps(first, 3)
        await offload(nodes, 2)
        await prepare(nodes, 3, [0], [0])
        second = rig.start(3, *STEPS, "--memory-mb", "40000", gpus="0", binding="0")
        rig.wait_for_steps(second, 3)
        with pytest.raises(NodeError) as refused:
            await resume(nodes, 2, [0], [0], beside=(3,))
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert "needs 50400 MiB; other jobs have 40400 MiB there" in refused.value.message
        assert (await job_sample(nodes, first)).phase is NodePhase.YIELDED
        assert len(digests(second.wait())) == 1
        await resume(nodes, 2, [0], [0], beside=(3,))
        assert len(digests(first.wait())) == 1

    rig.run(scenario)


def test_an_undo_does_not_take_memory_that_the_other_job_has_taken(rig: Rig) -> None:
    """Short of memory the driver's restore kills the job."""

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        first = rig.start(2, *STEPS, "--no-step", "--memory-mb", "15000", gpus="0", binding="0")
        rig.wait_for_steps(first, 3)
        await nodes.checkpoint(NODE, JobId(2), residual_limit_bytes=0, deadline_seconds=60.0)
        await prepare(nodes, 3, [0], [0], beside=(2,))
        second = rig.start(3, *STEPS, "--memory-mb", "70000", gpus="0", binding="0")
        rig.wait_for_steps(second, 3)
        with pytest.raises(NodeError, match="job 2 needs 15400 MiB; other jobs have 70400 MiB there"):
            await resume(nodes, 2, [0], [0])
        assert len(digests(second.wait())) == 1
        await resume(nodes, 2, [0], [0])
        assert len(digests(first.wait())) == 1

    rig.run(scenario)


def test_two_jobs_that_were_not_told_of_each_other_trespass(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        for job_id in (2, 3):  # neither has a process yet
            await prepare(nodes, job_id, [0], [0])
        jobs = [rig.start(job_id, *STEPS, "--steps", "1500", gpus="0", binding="0") for job_id in (2, 3)]
        for job in jobs:
            rig.wait_for_steps(job, 3)
        assert [(await job_sample(nodes, job)).trespasses for job in jobs] == [(0,), (0,)]
        await asyncio.to_thread(jobs[1].kill)
        assert (await job_sample(nodes, jobs[0])).trespasses == ()

    rig.run(scenario)


@pytest.mark.parametrize(("free_mib", "restored"), [(400, False), (600, True)])
def test_a_suspend_that_fails_half_way_is_undone_where_there_is_memory(
    tmp_path: Path, free_mib: int, restored: bool
) -> None:
    source, driver = MagicMock(), MagicMock()
    gpu = GpuReading(0, "GPU-0", "a100", 1000 * MIB, 0, 0.0, True, memory_free_bytes=free_mib * MIB)
    source.read.return_value = Reading("580.0", (gpu,))
    driver.state.return_value = ProcessState.CHECKPOINTED
    node = Node(AgentSettings(NODE, tmp_path, None), GpuReader(source), driver)
    me = os.getpid()
    start = node.processes.start_time_ticks(me)
    assert start is not None
    process = CheckpointedProcess(pid=me, start_time_ticks=start, gpus=(0,), memory_bytes={0: 500 * MIB})
    for state in (
        JobState(job_id=7, uid=os.getuid(), gpus=(0,), phase=NodePhase.PAUSING, checkpointed=(process,)),
        JobState(job_id=8, uid=os.getuid(), gpus=(0,), beside=(7,)),
    ):
        block = node.blocks.block(state.job_id)
        block.create(state.uid)
        block.save_state(state)
    block = node.blocks.block(7)
    returning.undo(node, block, node.state(block))
    assert driver.restore.called == restored
    after = node.state(block)
    assert after.phase is (NodePhase.RUNNING if restored else NodePhase.FAILED)
    assert ("job 7 needs 500 MiB" in after.error) != restored
