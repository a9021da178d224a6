# SPDX-License-Identifier: GPL-2.0-or-later
"""The orderly end: what becomes of running, suspended and waiting jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.daemon.stopping import Release, stop_in_order
from controller.model import (
    ON_GPU,
    Gpu,
    GpuId,
    Job,
    JobId,
    Memory,
    Node,
    Phase,
    Placement,
    Request,
    Size,
    Snapshot,
)
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.world import World

A, B, C, D = (GpuId("n1", ordinal) for ordinal in range(4))
E = GpuId("n2", 0)


def job(
    number: int, phase: Phase, gpus: Iterable[GpuId], allocation: Iterable[GpuId] = (), **more: object
) -> Job:
    """`gpus`: those it is on, or was on last."""
    gpus = frozenset(gpus)
    values: dict[str, object] = {"may_start": phase in (Phase.SUSPENDED, Phase.YIELDED), **more}
    return Job(
        id=JobId(number),
        user="alice",
        request=Request(size=Size.exactly(len(gpus))),
        phase=phase,
        submit_time=float(number),
        placement=Placement(gpus if phase in ON_GPU else frozenset(), frozenset(allocation) or gpus),
        last=gpus,
        **values,  # type: ignore[arg-type]
    )


def snapshot(*jobs: Job, sick: Iterable[GpuId] = ()) -> Snapshot:
    nodes = {}
    for name, count in (("n1", 4), ("n2", 1)):
        gpus = tuple(
            Gpu(
                id=GpuId(name, ordinal),
                model="a100",
                healthy=GpuId(name, ordinal) not in sick,
            )
            for ordinal in range(count)
        )
        nodes[name] = Node(name=name, gpus=gpus)
    return Snapshot(time=1000.0, nodes=nodes, jobs={j.id: j for j in jobs})


def resumed(seen: Snapshot) -> dict[int, frozenset[GpuId]]:
    targets = Release().plan(seen, Memory()).targets
    return {int(job_id): target.placement.gpus for job_id, target in targets.items()}


def test_one_job_per_gpu_and_the_first_comes_first() -> None:
    late = job(1, Phase.SUSPENDED, [A], start_time=300.0)
    early = job(2, Phase.SUSPENDED, [A], start_time=200.0)
    third = job(3, Phase.YIELDED, [A], start_time=400.0)
    assert resumed(snapshot(late, early, third)) == {2: {A}}


def test_running_jobs_are_left_alone_and_keep_their_gpus() -> None:
    seen = snapshot(
        job(1, Phase.RUNNING, [A]),
        job(2, Phase.SUSPENDED, [A]),
        job(3, Phase.UNKNOWN, [B]),
        job(4, Phase.SUSPENDED, [B]),
        job(5, Phase.STUCK, [C]),
        job(6, Phase.SUSPENDED, [C]),
        job(7, Phase.SUSPENDED, [D], switching=True, may_start=False),
    )
    assert resumed(seen) == {}


def test_a_job_that_can_move_goes_on_on_other_gpus_of_its_server() -> None:
    running = job(1, Phase.RUNNING, [A])
    still = job(2, Phase.SUSPENDED, [A], [A, B, C, D])
    moves = job(3, Phase.SUSPENDED, [A], [A, B, C, D], may_move=True)
    assert resumed(snapshot(running, still, moves)) == {3: {B}}
    gang = job(4, Phase.SUSPENDED, [A, B], [A, B, C, D], may_move=True)
    assert resumed(snapshot(running, gang)) == {4: {B, C}}


def test_gpus_that_cannot_be_read_and_those_of_ordinary_jobs_are_not_free() -> None:
    waiting = job(1, Phase.SUSPENDED, [A])
    assert resumed(snapshot(waiting, sick=[A])) == {}
    assert resumed(snapshot(waiting)) == {1: {A}}


def test_jobs_over_two_nodes_go_on_where_they_were_or_not_at_all() -> None:
    gang = job(1, Phase.SUSPENDED, [A, E], may_move=True)
    assert resumed(snapshot(gang)) == {1: {A, E}}
    assert resumed(snapshot(gang, job(2, Phase.RUNNING, [E]))) == {}


# -- with a controller ---------------------------------------------------------------------------------


async def end(world: World, *, release: bool, deadline_seconds: float = 40.0) -> None:
    """As the daemon does at SIGTERM."""
    assert world.controller is not None and world._task is not None and world._journal is not None
    world._stop.set()
    await world._task
    await stop_in_order(world.controller, world.cluster, release=release, deadline_seconds=deadline_seconds)
    world.controller.executor.cancel()
    world._journal.close()


def test_leave_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        jobs = [world.submit(work_seconds=60) for _ in range(2)]
        world.start()
        await asyncio.sleep(25)
        await end(world, release=False)
        before = sorted(world.state(j).value for j in jobs)
        assert before == ["RUNNING", "SUSPENDED"]
        await asyncio.sleep(300)
        assert sorted(world.state(j).value for j in jobs) == ["ENDED", "SUSPENDED"]
        world.start()
        await world.until_ended(jobs, 100)
        await world.stop()

    run_virtual(scenario())
    world.check()


def test_release_lets_go_on_what_can_and_gives_slurm_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, gpus=2)

    async def scenario() -> None:
        sharing = [world.submit(work_seconds=1e9) for _ in range(4)]
        world.start()
        await asyncio.sleep(40)
        held = [world.submit(work_seconds=50, gpus=2) for _ in range(3)]
        world.controller.use("release", Release())  # type: ignore[union-attr]  # nothing is placed any more
        await asyncio.sleep(3)
        await end(world, release=True)
        states = {j: world.state(j) for j in sharing}
        running = world.running()
        assert len(running) == 2, "the GPUs are in use"
        for j, state in states.items():
            assert (j in running) == (state is JobState.RUNNING), states
        for j in held:
            assert world.state(j) is JobState.PENDING
            assert not world.cluster.jobs[j].held, "Slurm may start it"
        for name in (j for j, state in states.items() if state is JobState.SUSPENDED):
            assert str(int(name)) in caplog.text
        assert "3 waiting jobs given to Slurm" in caplog.text

    with caplog.at_level("INFO"):
        run_virtual(scenario())
    world.check()


def test_release_resumes_a_job_whose_rival_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        short, long = world.submit(work_seconds=1e9), world.submit(work_seconds=80)
        world.start()
        await asyncio.sleep(25)
        controller = world.controller
        assert controller is not None and world._task is not None
        suspended = [j for j in (short, long) if world.state(j) is JobState.SUSPENDED]
        (running,) = {short, long} - set(suspended)
        world._stop.set()
        await world._task
        world.cluster.cancel(running)
        await asyncio.sleep(1)
        await end(world, release=True)
        (left,) = suspended
        assert world.state(left) is JobState.RUNNING and left in world.running()

    with caplog.at_level("INFO"):
        run_virtual(scenario())
    assert "1 jobs back on their GPUs" in caplog.text
    world.check()


def test_a_slurm_that_does_not_answer_costs_the_deadline_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> float:
        world.submit(work_seconds=1e9)
        world.start()
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()

        async def never(*_arguments: object) -> None:
            await asyncio.sleep(1e6)

        world.cluster.observe = never  # type: ignore[method-assign, assignment]
        world._stop.set()
        world._task.cancel()  # type: ignore[union-attr]
        await asyncio.gather(world._task, return_exceptions=True)  # type: ignore[arg-type]
        await stop_in_order(
            world.controller,  # type: ignore[arg-type]
            world.cluster,
            release=True,
            deadline_seconds=40.0,
        )
        return asyncio.get_running_loop().time() - began

    assert run_virtual(scenario()) <= 41
    assert "could be released within 40 s" in caplog.text
