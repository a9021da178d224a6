# SPDX-License-Identifier: GPL-2.0-or-later
"""What a new controller knows that no port could tell it, and what is done again until it is done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts
from controller.errors import JournalError
from controller.journal import JobFilter, JournalReader
from controller.loop.pacing import PaceSettings
from controller.model import Configuration, GpuId, JobId
from tests.unit.loop.world import SLICE_SECONDS, World, run

GPU = frozenset({GpuId("n1", 0)})


def test_gpus_that_were_promised_stay_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.submit(), world.submit()
        world.start()
        await asyncio.sleep(SLICE_SECONDS / 2)
        (waiting,) = (job for job in world.cycles[-1].snapshot.jobs.values() if not job.placement.gpus)
        assert waiting.promised == GPU
        await world.kill()
        world.cycles.clear()
        world.start()
        await asyncio.sleep(1)
        assert world.cycles[0].snapshot.jobs[waiting.id].promised == GPU
        await asyncio.sleep(SLICE_SECONDS)
        assert world.cycles[-1].snapshot.jobs[waiting.id].promised == frozenset(), "Slurm has allocated them"
        await world.stop()

    run(scenario)


def test_what_was_measured_of_models_is_known_before_the_next_job_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        job = world.submit(model="resnet50", work_seconds=40)
        world.start()
        await world.until_ended([job], 80)
        await asyncio.sleep(2)
        await world.kill()
        world.cycles.clear()
        world.start()
        await asyncio.sleep(1)
        snapshot = world.cycles[0].snapshot
        assert snapshot.models["resnet50"].largest_tensor_bytes == 2**28
        rate = snapshot.rates["resnet50"][Configuration("a100", 1)]
        assert rate.samples_per_second == pytest.approx(1.0)
        await world.stop()

    run(scenario)


@pytest.mark.parametrize("deltas", [False, True])
def test_an_action_that_cannot_begin_is_begun_later_though_nothing_else_happens(
    tmp_path: Path, deltas: bool
) -> None:
    """A release that no controller waits for is withdrawn as soon as the journal takes that."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1, deltas=deltas, slurm_costs=SlurmCosts(0.005, 1e6, 0.1))
        world.pace = PaceSettings(interval_seconds=1.0, resync_seconds=1e9)
        job = world.submit()
        recorder = world.start().executor.context.recorder
        released = asyncio.Event()
        original = recorder.operation_step

        def step_or_die(operation: int, step: Step, now: float) -> None:
            original(operation, step, now)
            if step is Step.AWAIT_START:
                released.set()
                raise asyncio.CancelledError

        recorder.operation_step = step_or_die  # type: ignore[method-assign]
        await asyncio.wait_for(released.wait(), 10)
        await world.kill()
        assert not world.cluster.jobs[job].held
        controller = world.start()
        refused = 0
        recorder = controller.executor.context.recorder
        begins = recorder.operation_begins

        def refuse(*arguments: Any) -> int:
            nonlocal refused
            refused += 1
            if refused <= 5:
                raise JournalError("cannot read the journal: disk I/O error")
            return begins(*arguments)

        recorder.operation_begins = refuse  # type: ignore[method-assign, assignment]
        await asyncio.sleep(3.5)
        assert not world.cluster.jobs[job].held
        assert any("wait for the next cycle" in sentence for sentence in controller.conditions.sentences)
        await asyncio.sleep(3)
        await world.stop()
        actions = [d.action for d in JournalReader(world.journal_path).decisions(job)]
        assert actions[:3] == ["place", "withdraw", "place"]

    run(scenario)


@pytest.mark.parametrize("deltas", [False, True])
def test_a_job_with_the_id_of_another_one_is_a_new_job_from_the_next_look_on(
    tmp_path: Path, deltas: bool
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1, deltas=deltas)
        job = world.submit(work_seconds=1000)
        controller = world.start()
        await asyncio.sleep(5)
        assert world.running() == {int(job)}
        served = world.cycles[-1].snapshot.usage[job].ran(asyncio.get_running_loop().time())
        assert served > 3
        world.nodes._blocks["n1"].pop(job)
        world.nodes._touched["n1"] = None
        old = world.cluster.jobs.pop(job)
        assert old.end_timer is not None
        old.end_timer.cancel()
        world.cluster._next_id = int(job)
        assert world.submit(work_seconds=5, user="bob", uid=2002) == job
        await asyncio.sleep(0.5)
        await world.until_ended([job], 60)
        await asyncio.sleep(2)
        assert any(job not in cycle.snapshot.jobs for cycle in world.cycles[5:])
        users = [cycle.snapshot.jobs[job].user for cycle in world.cycles if job in cycle.snapshot.jobs]
        assert users == sorted(users), "first alice's, then bob's"
        assert set(users) == {"alice", "bob"}
        assert controller.conditions.sentences == ()
        await world.stop()
        (row,) = JournalReader(world.journal_path).jobs(JobFilter())
        assert row.record.user == "bob" and row.run_seconds == pytest.approx(5, abs=1)

    run(scenario)


def test_a_job_keeps_its_gpus_until_its_switch_has_paid_off(tmp_path: Path) -> None:
    """A switch of so many seconds counts so many times; the loop looks again when that is over."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1, preempt_exempt_ratio=20.0)
        world.pace = PaceSettings(interval_seconds=1e9)
        jobs = [world.submit() for _ in range(2)]
        controller = world.start()
        await asyncio.sleep(2)
        controller.pace.poke()
        await asyncio.sleep(2)
        now = asyncio.get_running_loop().time()
        (running,) = (JobId(j) for j in world.running())
        until = world.cycles[-1].snapshot.jobs[running].keeps_until
        assert until is not None and now < until < now + 20
        cycles = len(world.cycles)
        await asyncio.sleep(until - now + 0.5)
        assert len(world.cycles) > cycles
        after = next(t.snapshot for t in world.cycles[cycles:] if t.snapshot.time >= until)
        assert after.jobs[running].keeps_until is None
        assert running in after.changed.jobs
        assert world.state(next(j for j in jobs if j != running)) is JobState.PENDING
        await world.stop()

    run(scenario)
