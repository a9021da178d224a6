# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that cannot be suspended: what the site's setting makes of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.errors import ClusterRefused, NodeError
from controller.journal import JournalReader
from controller.model import JobId, SuspendMethod, Unsuspendable
from tests.unit.loop.world import SLICE_SECONDS, World, run

TRIES = 3
PATIENCE_SECONDS = 300.0
"""More than three tries of five seconds each, twenty seconds after one another."""


def make_world(tmp_path: Path, unsuspendable: Unsuspendable) -> World:
    return World(
        tmp_path,
        gpus=1,
        step_deadline_seconds=5.0,
        retry_after_seconds=20.0,
        unsuspendable=unsuspendable,
        unsuspendable_tries=TRIES,
    )


def events(world: World, job: JobId) -> list[str]:
    return [event.kind for event in JournalReader(world.journal_path).events(job)]


def two_jobs(world: World, **options: Any) -> tuple[JobId, JobId]:
    """One that cannot be suspended and has the GPU, and one that waits for it."""
    stubborn = world.submit(**options)
    world.nodes.stubborn.add(stubborn)
    return stubborn, world.submit(work_seconds=30.0)


def test_by_default_it_keeps_its_gpus_and_is_shown_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.KEEP)
        stubborn, waiting = two_jobs(world)
        controller = world.start()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert world.running() == {stubborn}
        failed = world.cycles[-1].snapshot.jobs[stubborn].failed_suspends
        assert failed is not None and failed.tries > TRIES and "cannot be checkpointed" in failed.why
        assert 1_000_000.0 < failed.since < 1_000_030.0
        (sentence,) = controller.conditions.sentences
        assert f"job {stubborn} of user alice keeps 1 GPU and cannot be suspended since 1970-" in sentence
        assert events(world, stubborn).count("trouble") == 1, "once, not with each try"
        world.nodes.stubborn.clear()
        await world.until_ended([waiting], 100)
        assert world.cycles[-1].snapshot.jobs[stubborn].failed_suspends is None
        assert controller.conditions.sentences == ()
        await world.stop()
        world.check()

    run(scenario)


def test_requeued_it_waits_in_line_and_the_other_job_gets_the_gpu(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.REQUEUE)
        stubborn, waiting = two_jobs(world)
        world.start()
        await world.until_ended([waiting], PATIENCE_SECONDS)
        assert world.cluster.jobs[stubborn].restart_count == 1
        assert events(world, stubborn).count("suspend-failed") == TRIES
        (requeue,) = [
            d for d in JournalReader(world.journal_path).decisions(stubborn) if d.action == "requeue"
        ]
        assert "cannot be suspended (failed attempts: 3)" in requeue.reason
        await asyncio.sleep(10)
        assert world.running() == {stubborn}, "it starts again"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("way", [Unsuspendable.STORE, Unsuspendable.REQUEUE])
@pytest.mark.parametrize("stores", [True, False])
def test_one_that_does_not_fit_into_host_memory_is_stored(
    tmp_path: Path, way: Unsuspendable, stores: bool
) -> None:
    """With a store no work is lost. Without one it is lost only where the site has said so."""

    async def scenario() -> None:
        world = make_world(tmp_path, way)
        full, waiting = world.submit(), world.submit(work_seconds=30.0)
        world.nodes.storing |= {full} if stores else set()

        async def offload(node: str, *_: Any, **__: Any) -> None:
            raise NodeError(node, "host_memory", "0 MiB are left")

        world.nodes.offload = offload  # type: ignore[method-assign,assignment]
        world.start()
        await asyncio.sleep(PATIENCE_SECONDS)
        left = stores or way is Unsuspendable.REQUEUE
        assert (world.state(waiting) is JobState.ENDED) == left
        assert (world.cluster.jobs[full].restart_count > 0) == left
        decisions = JournalReader(world.journal_path).decisions(full)
        ways = {d.action for d in decisions} & {"migrate", "requeue"}
        assert ways == ({"migrate"} if stores else {"requeue"} if left else set())
        await world.stop()
        world.check()

    run(scenario)


def test_a_cancelled_job_leaves_the_reason_in_slurm_and_in_the_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.CANCEL)
        stubborn, waiting = two_jobs(world)
        world.start()
        await world.until_ended([stubborn, waiting], PATIENCE_SECONDS)
        job = world.cluster.jobs[stubborn]
        assert job.state_name == "CANCELLED" and "cannot be suspended (failed attempts: 3)" in job.comment
        assert events(world, stubborn).count("suspend-failed") == TRIES
        assert events(world, stubborn)[-1] == "cancelled"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("refused", ["--no-requeue", "--gandiva-migrate=no"])
def test_a_job_whose_user_refused_a_requeue_keeps_its_gpus(tmp_path: Path, refused: str) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.REQUEUE)
        options = {"requeue": False} if refused == "--no-requeue" else {"migrate": False}
        stubborn, _ = two_jobs(world, **options)
        world.start()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert world.running() == {stubborn}
        assert world.cluster.jobs[stubborn].restart_count == 0
        assert "requeue-failed" not in events(world, stubborn)
        failed = world.cycles[-1].snapshot.jobs[stubborn].failed_suspends
        assert failed is not None and failed.way_out is Unsuspendable.KEEP
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("trouble", ["unreachable", "internal"])
def test_what_is_its_nodes_fault_does_not_count(tmp_path: Path, trouble: str) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.CANCEL)
        job, _ = two_jobs(world)
        world.nodes.stubborn.clear()

        async def fails(node: str, *_: Any, **__: Any) -> None:
            raise NodeError(node, trouble, "it is the node's fault")

        world.nodes.pause = fails  # type: ignore[method-assign,assignment]
        world.start()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert world.state(job) is JobState.RUNNING
        assert events(world, job).count("suspend-failed") > TRIES
        await world.stop()
        world.check()

    run(scenario)


def test_a_controller_killed_before_the_cancellation_counts_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.CANCEL)
        stubborn, waiting = two_jobs(world)
        controller = world.start()
        killed = asyncio.Event()
        original = controller.executor.context.recorder.operation_step

        def step_or_die(operation: int, step: Step, now: float) -> None:
            original(operation, step, now)
            if step is Step.CANCEL:
                killed.set()
                raise asyncio.CancelledError

        controller.executor.context.recorder.operation_step = step_or_die  # type: ignore[method-assign]
        await asyncio.wait_for(killed.wait(), PATIENCE_SECONDS)
        await world.kill()
        world.start()
        await world.until_ended([stubborn, waiting], PATIENCE_SECONDS)
        assert world.cluster.jobs[stubborn].state_name == "CANCELLED"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("asks_for_it", [True, False])
def test_a_job_whose_owner_forbids_the_requeue_is_suspended_instead(
    tmp_path: Path, asks_for_it: bool
) -> None:
    """`scontrol update requeue=0`: Slurm refuses to put it back into the queue, whoever asks."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        method = None if asks_for_it else SuspendMethod.REQUEUE
        requests = world.settings.requests.model_copy(update={"suspend": method})
        world.settings = world.settings.model_copy(update={"requests": requests})
        options: dict[str, Any] = {"suspend": "requeue"} if asks_for_it else {}
        first, second = world.submit(**options), world.submit(**options)
        world.start()
        await asyncio.sleep(SLICE_SECONDS / 2)
        (running,) = world.running()
        world.cluster.jobs[JobId(running)].requeue = False
        world.cluster.touch(JobId(running))
        await asyncio.sleep(SLICE_SECONDS)
        assert world.state(JobId(running)) is JobState.SUSPENDED
        assert world.running() == {int(first), int(second)} - {running}
        await world.stop()
        world.check()

    run(scenario)


def test_a_suspend_that_slurm_refuses_for_ever_is_tried_more_and_more_rarely(tmp_path: Path) -> None:
    """The controller's user has lost its right: the job works on, and the administrator reads why."""

    async def scenario() -> None:
        world = make_world(tmp_path, Unsuspendable.CANCEL)
        suspend, asked = world.cluster.suspend, list[float]()

        async def refuse(job_id: JobId) -> None:
            asked.append(world.cluster.clock())
            raise ClusterRefused(f"job {job_id}: Access/permission denied")

        world.cluster.suspend = refuse  # type: ignore[method-assign]
        first, second = world.submit(), world.submit()
        controller = world.start()
        await asyncio.sleep(3000)
        assert world.running() == {first} and world.worked_seconds(first) > 2900
        assert 5 <= len(asked) <= 10
        pauses = [later - before for before, later in pairwise(asked)]
        assert pauses[-1] > 4 * pauses[0]
        assert events(world, first).count("suspend-failed") == len(asked)
        (sentence,) = controller.conditions.sentences
        assert "Access/permission denied" in sentence and "AdminLevel Operator" in sentence
        world.cluster.suspend = suspend  # type: ignore[method-assign]
        await asyncio.sleep(4000)
        assert world.worked_seconds(second) > SLICE_SECONDS
        assert controller.conditions.sentences == ()
        await world.stop()
        world.check()

    run(scenario)
