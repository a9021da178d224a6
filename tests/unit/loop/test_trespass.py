# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory of a job where it should have none: the GPU is nobody else's, and the job is named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from controller.cluster.port import JobState
from controller.errors import ClusterRefused, NodeError
from controller.journal import JournalReader
from controller.loop.conditions import Conditions, report_nodes
from controller.model import JobId, Trespass
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuProcess, NodePhase
from controller.observe.jobs import TRESPASS_SECONDS
from controller.observe.nodes import trespassers
from tests.contract.troubled import TroubledNodes
from tests.unit.loop.test_reserving import Port
from tests.unit.loop.world import SLICE_SECONDS, World, run


class Trespassing:
    """Between the controller and the nodes: these jobs have memory on GPUs that they have left."""

    def __init__(self, nodes: TroubledNodes) -> None:
        self._nodes = nodes
        self.jobs: dict[JobId, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        seen = await self._nodes.observe(deadline_seconds)
        return {name: self._with(s) if isinstance(s, NodeSample) else s for name, s in seen.items()}

    def _with(self, sample: NodeSample) -> NodeSample:
        jobs = dict(sample.jobs)
        for job_id, index in self.jobs.items():
            if job_id in jobs and jobs[job_id].phase is NodePhase.YIELDED:
                jobs[job_id] = replace(jobs[job_id], trespasses=(index,))
        return NodeSample(sample.node, sample.time, tuple(sample.gpus), jobs)


class Elsewhere(Trespassing):
    """These jobs have memory on another GPU than their own."""

    def _with(self, sample: NodeSample) -> NodeSample:
        gpus = list(sample.gpus)
        for job_id, index in self.jobs.items():
            if job_id in sample.jobs:
                gpus[index] = replace(gpus[index], processes=(GpuProcess(77, job_id, 2001, 1 << 20),))
        return NodeSample(sample.node, sample.time, gpus, sample.jobs)


@pytest.mark.parametrize("whole", [False, True])
def test_a_job_that_slurm_gave_whole_gpus_trespasses_nowhere(whole: bool) -> None:
    """The controller gave it back to Slurm: it has no turns."""
    first = JobId(1)
    job = MagicMock(id=first, exclusive_gpus=whole)
    sample = MagicMock(gpus=(), jobs={first: MagicMock(job_id=first, trespasses=(0,))})
    assert trespassers(sample, {first: job}) == ({} if whole else {0: first})


async def until(what: str, condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within 60 s: {what}")


def test_memory_of_a_suspended_job_costs_the_one_that_runs_nothing(tmp_path: Path) -> None:
    """Nobody else gets the GPU either; turns go on when the memory is gone."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1, trespass=Trespass.KEEP)
        trespass = Trespassing(world.nodes)
        world.node_port = trespass
        first, second = world.submit(), world.submit()
        controller = world.start()
        await until("the second's turn", lambda: world.running() == {second})
        assert world.state(first) is JobState.SUSPENDED
        third = world.submit(weight=50.0)
        trespass.jobs[first] = 0
        for _ in range(int(5 * SLICE_SECONDS)):
            await asyncio.sleep(1)
            assert world.running() == {second}
        (event,) = (
            e for e in JournalReader(world.journal_path).events(first) if "memory on n1:0" in e.message
        )
        assert f"job {first} (user " in event.message
        trespass.jobs.clear()
        await asyncio.sleep(5 * SLICE_SECONDS)
        assert not any("memory on" in sentence for sentence in controller.conditions.sentences)
        assert world.worked_seconds(third) > 0
        await world.stop()
        world.check()

    run(scenario)


def test_memory_of_a_job_on_a_gpu_that_slurm_gave_to_others_keeps_everybody_off_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)

        first = world.submit()
        trespass = Elsewhere(world.nodes)
        world.node_port = trespass
        controller = world.start()
        await until("the first job", lambda: world.running() == {first})
        (gpu,) = world.cluster.jobs[first].binding
        other = 1 - gpu.ordinal
        trespass.jobs[first] = other
        second = world.submit()
        await asyncio.sleep(SLICE_SECONDS)
        assert any(
            f"job {first} (user " in trouble and f"n1:{other}" in trouble
            for trouble in controller.conditions.sentences
        )
        assert all(g.ordinal != other for g in world.cluster.jobs[second].binding)
        await world.stop()
        world.check()

    run(scenario)


async def trespassing(world: World) -> tuple[JobId, Elsewhere]:
    """A job that runs on one of two GPUs, with memory on the other."""
    first, trespass = world.submit(), Elsewhere(world.nodes)
    world.node_port = trespass
    world.start()
    await until("the first job", lambda: world.running() == {first})
    (gpu,) = world.cluster.jobs[first].binding
    trespass.jobs[first] = 1 - gpu.ordinal
    return first, trespass


@pytest.mark.parametrize("way", Trespass)
def test_a_trespasser_goes_its_way_out(tmp_path: Path, way: Trespass) -> None:
    """After half a minute: the rightful job and the queue wait for it no longer."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=2, trespass=way)
        first, trespass = await trespassing(world)
        await asyncio.sleep(TRESPASS_SECONDS - 5)
        assert world.running() == {first}
        await asyncio.sleep(15)
        job = world.cluster.jobs[first]
        if way is Trespass.KEEP:
            assert world.running() == {first}
        elif way is Trespass.CANCEL:
            assert job.state is JobState.ENDED
        else:
            assert job.restart_count == 1
        events = [event.message for event in JournalReader(world.journal_path).events(first)]
        said = any("or a process stayed there" in text for text in events)
        assert said == (way is not Trespass.KEEP)
        trespass.jobs.clear()
        await world.stop()

    run(scenario)


REQUEUE, CANCEL, KEEP = Trespass.REQUEUE, Trespass.CANCEL, Trespass.KEEP


@pytest.mark.parametrize(
    ("state", "may_requeue", "way", "follows"),
    [
        (JobState.RUNNING, True, REQUEUE, "suspend.trespass follows (requeue) if that lasts half a minute"),
        (JobState.SUSPENDED, True, CANCEL, "suspend.trespass follows (cancel) if that lasts half a minute"),
        (JobState.RUNNING, True, KEEP, "cancelling the job ends it"),
        (JobState.RUNNING, False, REQUEUE, "cancelling the job ends it"),
        (JobState.COMPLETING, True, REQUEUE, "the job is over: end its processes on n1 if they stay"),
        (JobState.ENDED, True, KEEP, "the job is over: end its processes on n1 if they stay"),
        (None, True, KEEP, "the job is over: end its processes on n1 if they stay"),
    ],
)
def test_what_is_said_of_a_trespasser_is_true_of_it(
    state: JobState | None, may_requeue: bool, way: Trespass, follows: str
) -> None:
    """A job that is over cannot be cancelled, and one that is requeued by itself need not be."""
    job = MagicMock(id=JobId(7), user="ann", state=state, may_requeue=may_requeue)
    observer = MagicMock(trespassers={"n1": {1: JobId(7)}}, bad={})
    observer.slurm.jobs = {} if state is None else {JobId(7): job}
    conditions = Conditions(MagicMock(), MagicMock(), lambda _: None)
    report_nodes(conditions, observer, {}, way)
    (said,) = conditions.sentences
    user = "unknown" if state is None else "ann"
    place = f"job 7 (user {user}) has memory on n1:1, which is not its own now"
    assert said == f"{place}: no other job gets that GPU before the memory is gone; {follows}"


class KeepsJobs(Port):
    """Slurm requeues no job: srun's and salloc's, say."""

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        if method == "requeue":
            self.calls.append(method)
            raise ClusterRefused("Only batch jobs are accepted or processed")
        return await super()._call(method, job_id, *arguments)


def test_slurm_is_not_asked_for_ever_for_what_it_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2, trespass=Trespass.REQUEUE)
        world.cluster_port = port = KeepsJobs(world.cluster)
        first, _ = await trespassing(world)
        await asyncio.sleep(TRESPASS_SECONDS + 60)
        assert port.calls.count("requeue") == 1
        assert world.running() == {first}
        await world.stop()

    run(scenario)


def test_a_job_that_trespasses_at_each_start_waits_longer_each_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2, trespass=Trespass.REQUEUE)
        first, trespass = await trespassing(world)
        await asyncio.sleep(3600)
        assert 3 <= world.cluster.jobs[first].restart_count <= 6
        trespass.jobs.clear()
        await world.stop()

    run(scenario)
