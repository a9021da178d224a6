# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs whose CUDA contexts and communicators stay on a GPU while they are off it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import Unpack

from controller.act.residuals import require_room
from controller.errors import NodeError
from controller.model import Gpu, GpuId, Job, JobId, Node, Phase, Profile, Request, Size, Snapshot
from controller.nodes.port import Leave, NodeSample
from controller.nodes.protocol import GpuProcess, NodePhase, Offload
from controller.simulation.virtual_time import run_virtual
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import SLICE_SECONDS, World

GIB = 1 << 30


class KeepMemory(TroubledNodes):
    """Nodes on which jobs leave memory behind."""

    kept: Mapping[JobId, int] = {}
    """Bytes on each of its GPUs, by job."""
    limits: list[int]
    """What each offload was allowed."""

    async def offload(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        size, limit_bytes = self.kept.get(job_id, 0), leave["residual_limit_bytes"]
        self.limits.append(limit_bytes)
        if size > limit_bytes:
            text = f"{size >> 20} MiB of job {job_id} stay, allowed are {limit_bytes >> 20} MiB"
            raise NodeError(node, "left_on_gpu", text)
        done = await super().offload(node, job_id, **leave)
        return replace(done, left_bytes=size, left_on=dict.fromkeys(self._block(node, job_id).gpus, size))

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        found = await super().observe(deadline_seconds)
        return {name: self._with_kept(s) if isinstance(s, NodeSample) else s for name, s in found.items()}

    def _with_kept(self, sample: NodeSample) -> NodeSample:
        gpus = []
        for gpu in sample.gpus:
            left = [
                GpuProcess(1, job.job_id, 1, self.kept[job.job_id])
                for job in sample.jobs.values()
                if job.phase is NodePhase.YIELDED and gpu.index in job.gpus and job.job_id in self.kept
            ]
            used = gpu.memory_used_bytes + sum(process.memory_bytes for process in left)
            gpus.append(replace(gpu, memory_used_bytes=used, processes=(*gpu.processes, *left)))
        return NodeSample(sample.node, sample.time, gpus, sample.jobs)


def make(folder: Path, share: float = 0.1) -> tuple[World, KeepMemory]:
    world = World(folder, gpus=1, residual_limit_bytes=3 << 29, residual_fraction=share)
    nodes = KeepMemory(world.cluster)
    nodes.limits = []
    world.node_port = world.nodes = nodes
    return world, nodes


def test_jobs_that_keep_little_take_turns_and_what_they_keep_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = make(tmp_path)
        jobs = [world.submit() for _ in range(2)]
        nodes.kept = dict.fromkeys(jobs, GIB)
        controller = world.start()
        await asyncio.sleep(6 * SLICE_SECONDS)
        assert all(world.worked_seconds(job) > SLICE_SECONDS for job in jobs)
        assert set(nodes.limits) == {3 << 29}
        snapshot = world.cycles[-1].snapshot
        (off,) = set(jobs) - world.running()
        assert snapshot.nodes["n1"].gpus[0].left_by == ((off, GIB),)
        assert controller.executor.context.settings.suspend.residual_fraction == 0.1
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_what_jobs_keep_of_a_gpu_together_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        # 80 GiB: 2 GiB may be kept. The second job to leave would go beyond it, so it keeps the GPU.
        world, nodes = make(tmp_path, share=0.025)
        jobs = [world.submit() for _ in range(3)]
        nodes.kept = dict.fromkeys(jobs, 5 * GIB // 4)
        world.start()
        await asyncio.sleep(6 * SLICE_SECONDS)
        (stays,) = world.running()
        first = next(
            job for job in jobs if world.cycles[-1].snapshot.nodes["n1"].gpus[0].left_by[0][0] == job
        )
        assert nodes.limits[:2] == [3 << 29, 3 * GIB // 4]
        assert f"job {stays} (user alice): could not be taken off n1:0" in caplog.text
        assert "1280 MiB of job" in caplog.text
        assert world.cycles[-1].snapshot.jobs[JobId(stays)].failed_suspends is None  # it is not to blame
        assert "suspended jobs may keep 2% of GPU n1:0 together (suspend.residual_fraction)" in caplog.text
        assert f"(suspend.residual_fraction), and suspended job {first} keeps 1280 MiB of it" in caplog.text
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_job_keeps_its_gpu_where_what_it_leaves_would_keep_another_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world, nodes = make(tmp_path)
        large, small = world.submit(), world.submit(work_seconds=3 * SLICE_SECONDS)
        nodes.kept = {small: GIB}
        controller = world.start()
        await asyncio.sleep(SLICE_SECONDS / 2)
        assert world.running() == {int(large)}
        profiles = controller.observer.measured.profiles
        profiles[large] = replace(profiles[large], peak_memory_bytes=80 * GIB - GIB // 2)
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        assert world.running() == {int(small)}
        assert f"job {small} (user alice): could not be taken off n1:0" in caplog.text
        assert f"job {large} has had 81408 MiB on a GPU, and may need it on n1:0" in caplog.text
        await world.until_ended([small], 10 * SLICE_SECONDS)
        await asyncio.sleep(SLICE_SECONDS / 2)
        assert world.running() == {int(large)}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_job_that_does_not_fit_beside_what_others_left_is_not_started() -> None:
    gpu = Gpu(
        id=GpuId("n1", 0),
        model="a100",
        memory_bytes=80 * GIB,
        left_by=((JobId(5), GIB), (JobId(6), 8 * GIB)),
    )
    request = Request(size=Size.exactly(1))
    job = Job(id=JobId(6), user="alice", request=request, submit_time=0.0, phase=Phase.QUEUED)
    other = replace(job, id=JobId(7))

    def seen(peak_bytes: int, gpu: Gpu = gpu) -> Snapshot:
        profiles = dict.fromkeys((job.id, other.id), Profile(peak_memory_bytes=peak_bytes))
        nodes = {"n1": Node(name="n1", gpus=(gpu,))}
        return Snapshot(time=0.0, nodes=nodes, jobs={}, profiles=profiles)

    require_room(job, [gpu.id], seen(79 * GIB), {})  # what it has left itself is not in its way
    with pytest.raises(NodeError, match="n1:0 has 72704 MiB, as suspended jobs 5, 6 keep 9216 MiB of it"):
        require_room(other, [gpu.id], seen(72 * GIB), {})
    require_room(other, [gpu.id], seen(71 * GIB), {})
    require_room(other, [gpu.id], seen(0), {})  # nothing is known of it
    with pytest.raises(NodeError, match="n1:0 has 79872 MiB, as suspended job 8 keeps 2048 MiB of it"):
        empty = seen(79 * GIB, replace(gpu, left_by=()))
        require_room(other, [gpu.id], empty, {JobId(8): {gpu.id: 2 * GIB}})
