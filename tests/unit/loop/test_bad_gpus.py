# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that cannot be read, have memory errors or are gone: nobody is put there, and nobody is taken off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from controller.cluster.port import JobState
from controller.errors import NodeError
from controller.journal import JournalReader
from controller.model import GpuId, JobId
from controller.nodes.port import NodeSample
from controller.policies.moves.balance import Balance
from controller.policies.presets import PRESETS
from controller.policies.settings import GandivaSettings, MigrationSettings
from controller.settings.policies import PolicySettings
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.world import SLICE_SECONDS, World, run

ECC = "it has uncorrected memory errors (ECC)"


class Sick(TroubledNodes):
    """Nodes with bad GPUs, each with its reason; None: the agent does not list it any more."""

    bad: Mapping[GpuId, str | None] = MappingProxyType({})
    failing = False
    """A verb fails, as where NVML cannot be read."""
    refused = 0

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        samples = await super().observe(deadline_seconds)
        return {n: self._with(s) if isinstance(s, NodeSample) else s for n, s in samples.items()}

    def _with(self, sample: NodeSample) -> NodeSample:
        gpus = []
        for gpu in sample.gpus:
            reason = self.bad.get(GpuId(sample.node, gpu.index), "")
            if reason is not None:
                gpus.append(replace(gpu, healthy=not reason, reason=reason))
        return replace(sample, gpus=tuple(gpus))

    async def pause(self, node: str, *arguments: Any, **options: Any) -> Any:
        if self.failing:
            self.refused += 1
            raise NodeError(node, "internal", "NVML failed: Unknown Error")
        return await super().pause(node, *arguments, **options)


def sick_world(tmp_path: Path, **options: Any) -> tuple[World, Sick]:
    world = World(tmp_path, **options)
    nodes = Sick(world.cluster)
    world.node_port = world.nodes = nodes
    return world, nodes


def moments(world: World, jobs: list[JobId]) -> list[tuple[float, str]]:
    """When something was decided about these jobs, and what."""
    reader = JournalReader(world.journal_path)
    return [(d.time, d.action) for job in jobs for d in reader.decisions(job) if d.action != "wait"]


def suspended(world: World, jobs: list[JobId]) -> list[JobId]:
    return [job for job in jobs if world.state(job) is JobState.SUSPENDED]


@pytest.mark.parametrize("reason", ["NVML failed: Unknown Error", None], ids=["unreadable", "not listed"])
def test_a_running_job_is_not_taken_off_for_the_health_of_its_gpus(
    tmp_path: Path, reason: str | None
) -> None:
    """Readings of all GPUs of a node that fail: jobs are where they were, and take turns again afterwards."""

    async def scenario() -> None:
        world, nodes = sick_world(tmp_path, gpus=2)
        jobs = [world.submit() for _ in range(4)]
        world.start()
        await asyncio.sleep(4.4 * SLICE_SECONDS)
        running, asked = world.running(), moments(world, jobs)
        assert len(running) == 2
        nodes.bad = {GpuId("n1", 0): reason, GpuId("n1", 1): reason}
        for _ in range(int(3 * SLICE_SECONDS)):
            await asyncio.sleep(1)
            assert world.running() == running
        assert moments(world, jobs) == asked
        nodes.bad = {}
        await asyncio.sleep(3 * SLICE_SECONDS)
        assert world.running() != running
        await world.stop()
        world.check()

    run(scenario)


def test_a_suspended_job_waits_for_its_bad_gpu_and_nobody_is_put_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = sick_world(tmp_path, gpus=1)
        jobs = [world.submit(), world.submit(work_seconds=3 * SLICE_SECONDS)]
        controller = world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        (off,) = suspended(world, jobs)
        nodes.bad = {GpuId("n1", 0): ECC}
        third = world.submit()
        await asyncio.sleep(10 * SLICE_SECONDS)
        assert list(controller.conditions.sentences) == [
            f"GPU n1:0 is not usable: {ECC}; jobs that are on it stay there, no other job gets it"
        ]
        gpu = world.cycles[-1].snapshot.gpu(GpuId("n1", 0))
        assert gpu is not None and gpu.reason == ECC
        assert off not in world.running() and third not in world.running()
        nodes.bad = {}
        await asyncio.sleep(10 * SLICE_SECONDS)
        assert world.worked_seconds(third) > 0 and not controller.conditions.sentences
        await world.stop()
        world.check()

    run(scenario)


def test_where_nvml_could_not_be_read_the_next_try_is_in_seconds(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, nodes = sick_world(tmp_path, gpus=1, retry_after_seconds=300.0)
        jobs = [world.submit() for _ in range(2)]
        world.start()
        await asyncio.sleep(0.5 * SLICE_SECONDS)
        nodes.failing = True
        await asyncio.sleep(5 * SLICE_SECONDS)
        assert nodes.refused >= 3
        nodes.failing = False
        await asyncio.sleep(3 * SLICE_SECONDS)
        assert all(world.worked_seconds(job) > 0 for job in jobs)
        kinds = [e.kind for job in jobs for e in JournalReader(world.journal_path).events(job)]
        assert "suspend-failed" in kinds
        await world.stop()
        world.check()

    run(scenario)


def test_a_suspended_job_with_a_store_leaves_its_bad_gpu(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = PRESETS["gandiva"](
            PolicySettings(gandiva=GandivaSettings(slice_seconds=SLICE_SECONDS, max_jobs_per_gpu=8)),
            (Balance(MigrationSettings()),),
        )
        world, nodes = sick_world(tmp_path, nodes=2, gpus=1, policy=policy)
        world.cluster.set_node("n2", up=False)
        jobs = [world.submit() for _ in range(2)]
        world.start()
        await asyncio.sleep(2.5 * SLICE_SECONDS)
        (off,), (on,) = suspended(world, jobs), world.running()
        nodes.storing.update(jobs)
        nodes.bad = {GpuId("n1", 0): ECC}
        await asyncio.sleep(3 * SLICE_SECONDS)
        assert world.running() == {on}
        world.cluster.set_node("n2", up=True)
        await asyncio.sleep(6 * SLICE_SECONDS)
        assert world.running() == {on, off}
        assert world.cluster.jobs[off].binding == {GpuId("n2", 0)}
        await world.stop()
        world.check()

    run(scenario)
