# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that left its GPUs is stopped, all of its processes, before anybody else gets them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from controller.act.actions import Suspend
from controller.act.context import Context
from controller.act.executor import Executor
from controller.cluster.port import ClusterGpu, ClusterNode, JobState
from controller.loop.clock import SystemClock
from controller.model import GpuId, Job, JobId, Node, Phase, Placement, Request, Size, Snapshot
from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes
from controller.observe.jobs import Seen, make_job
from controller.observe.memory import JobMemories, JobMemory
from controller.observe.nodes import make_node
from controller.settings.schema import Settings, SuspendSettings

from .conftest import CONTEXT_BYTES, MIB, NODE, ROOT, Rig, eventually, job_sample, sample
from .test_yield_and_resume import prepare, resume

STEPS = ("--minibatch-ms", "10", "--memory-mb", "64", "--steps", "100000")
LATECOMER = """
import sys, time
from pathlib import Path
import mockcuda
Path(sys.argv[1]).write_text("ready")
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
mockcuda.init()
context = mockcuda.Context(0)
time.sleep(60)
"""
"""Another process of the job, without a session: it wants its GPU when nobody expects it."""
GPU_0 = frozenset({GpuId(NODE, 0)})
REQUEST = Request(size=Size.exactly(1))

SLURM_NODE = ClusterNode(
    name=NODE,
    gpus=(ClusterGpu(0, "a100", 16),),
    up=True,
    state="MIXED",
    reason="",
    cpus=16,
    memory_bytes=0,
    memory_allocated_bytes=0,
    ordinary_gpus={},
)


class Assembly:
    """Jobs 2 and 3 on GPU 0, and an executor in suspend mode `node`."""

    def __init__(self, rig: Rig, nodes: RemoteNodes) -> None:
        self.rig, self.nodes = rig, nodes
        self.recorder: Any = MagicMock()
        settings = Settings(suspend=SuspendSettings(mode="node"))
        context = Context(AsyncMock(), nodes, SystemClock(), JobMemories(), self.recorder, settings)
        self.executor = Executor(context)

    async def start(self) -> int:
        """Job 2 with its second process; returns the pid of that."""
        await prepare(self.nodes, 2, [0], [0])
        job = self.rig.start(2, *STEPS, gpus="0")
        self.ready, self.go = self.rig.folder / "ready", self.rig.folder / "go"
        self.rig.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'examples'}"
        other = self.rig.start_other(2, sys.executable, "-c", LATECOMER, str(self.ready), str(self.go))
        eventually("the second process", self.ready.exists)
        self.rig.wait_for_steps(job, 2)
        return other.pid

    async def suspend(self) -> None:
        job = Job(
            id=JobId(2),
            user="alice",
            request=REQUEST,
            submit_time=0.0,
            phase=Phase.RUNNING,
            placement=Placement(GPU_0, GPU_0),
        )
        snapshot = Snapshot(time=0.0, nodes={NODE: Node(name=NODE, gpus=())}, jobs={job.id: job})
        self.executor.sync(snapshot)
        self.executor.apply([Suspend(job.id, "its turn is over")], snapshot)
        assert await self.executor.drain(30.0)

    def outcome(self) -> tuple[str, str]:
        _, outcome, error, _ = self.recorder.operation_ends.call_args.args
        return outcome.value, error


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_no_process_of_a_suspended_job_can_come_back_to_its_gpu(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        site = Assembly(rig, nodes)
        other = await site.start()
        await site.suspend()
        assert site.outcome() == ("done", "")
        assert rig.held()[0] == 0
        site.go.touch()
        await asyncio.sleep(1.0)
        assert rig.held()[0] == 0, "memory of a suspended job is on the GPU of the next one"
        assert state(other) == "T"
        await resume(nodes, 2, [0], [0])
        eventually("the second process at work", lambda: rig.held()[0] > 64 * 2**20 + CONTEXT_BYTES)

    rig.run(scenario)


def test_memory_taken_between_the_offload_and_the_stop_is_seen(rig: Rig) -> None:
    """The job keeps its GPU then, and runs on."""

    async def scenario(nodes: RemoteNodes) -> None:
        site = Assembly(rig, nodes)
        await site.start()
        offload = nodes.offload

        async def offload_and_take(*args: Any, **options: Any) -> Any:
            answer = await offload(*args, **options)
            site.go.touch()
            await asyncio.to_thread(eventually, "its memory", lambda: rig.held()[0] > 0)
            return answer

        nodes.offload = offload_and_take  # type: ignore[method-assign]
        await site.suspend()
        outcome, error = site.outcome()
        assert outcome == "failed" and f"{CONTEXT_BYTES // MIB} MiB of job 2 stay on GPU 0" in error
        job = site.rig.jobs[0]
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        at = len(job.steps())
        rig.wait_for_steps(job, at + 3)
        site.recorder.slice_ends.assert_not_called()

    rig.run(scenario)


@pytest.mark.parametrize("next_job_runs", [False, True])
def test_memory_that_comes_back_later_holds_the_gpu_and_names_the_job(rig: Rig, next_job_runs: bool) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        site = Assembly(rig, nodes)
        other = await site.start()
        await site.suspend()
        if next_job_runs:
            await prepare(nodes, 3, [0], [0])
            rig.wait_for_steps(rig.start(3, *STEPS, gpus="0"), 2)
        site.go.touch()
        held = rig.held()[0]
        os.kill(other, signal.SIGCONT)  # as a step that was being started just then
        await asyncio.to_thread(eventually, "its memory", lambda: rig.held()[0] > held)
        seen = await sample(nodes)
        jobs: Any = {
            JobId(number): MagicMock(
                id=JobId(number),
                state=JobState.RUNNING,
                nodes=(NODE,),
                binding=GPU_0,
                held=False,
                exclusive_gpus=False,
            )
            for number in (2, 3)
        }
        on_nodes = {NODE: seen.jobs[JobId(2)]}
        job = make_job(Seen(job=jobs[2], request=REQUEST, on_nodes=on_nodes, memory=JobMemory(), now=0.0))
        assert job.phase is Phase.STUCK, "the job counts as off its GPU"
        node = make_node(SLURM_NODE, seen, jobs)
        assert not node.gpus[0].healthy, "the GPU would be given to others"

    rig.run(scenario)
