# SPDX-License-Identifier: GPL-2.0-or-later
"""A job writes its state into its checkpoint store from time to time, and goes on where it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.errors import NodeUnreachable
from controller.journal.reader import JournalReader
from controller.model import JobId, Phase
from controller.nodes.protocol import NodePhase, Saved
from controller.nodes.simulated import NodeCosts
from controller.policies.presets import PRESETS
from controller.policies.settings import GandivaSettings
from controller.run.ending import put_by
from controller.settings.policies import PolicySettings
from tests.unit.draws import some
from tests.unit.loop.world import SLICE_SECONDS, World, run

EVERY_SECONDS, SAVE_SECONDS = 60.0, 1.0
STEPS = [Step.PAUSE, Step.SAVE, Step.NODE_RESUME]
"""Of a save on GPUs, in order."""


class Stored(World):
    """One GPU. Notes each save: of which job, after how many seconds of its work, and in which phase."""

    def __init__(
        self, folder: Path, every_seconds: float = EVERY_SECONDS, gpus: int = 1, **options: Any
    ) -> None:
        costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=SAVE_SECONDS)
        super().__init__(folder, gpus=gpus, node_costs=costs, save_every_seconds=every_seconds, **options)
        self.saves: list[tuple[JobId, float, NodePhase]] = []
        self.on_step: Callable[[Step], None] = lambda _step: None
        answer = self.nodes.save

        async def save(node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
            phase = self.nodes._block(node, job_id).phase
            saved = await answer(node, job_id, deadline_seconds=deadline_seconds)
            self.saves.append((job_id, self.worked_seconds(job_id), phase))
            return saved

        self.nodes.save = save  # type: ignore[method-assign]

    def stored(self, work_seconds: float = 1000.0, **options: Any) -> JobId:
        job = self.submit(work_seconds=work_seconds, **options)
        self.nodes.storing.add(job)
        return job

    def start(self) -> Any:
        controller = super().start()
        recorder = controller.executor.context.recorder
        original = recorder.operation_step

        def step(operation: int, step: Step, now: float) -> None:
            original(operation, step, now)
            self.on_step(step)

        recorder.operation_step = step  # type: ignore[method-assign]
        return controller

    async def halt(self) -> None:
        """The loop ends, and what is under way goes on."""
        assert self._task is not None
        self._stop.set()
        await self._task

    def close(self) -> None:
        assert self._journal is not None
        self._journal.close()

    def gaps(self, job: JobId) -> list[float]:
        """Seconds of its work between its saves, the first from its start."""
        done = [0.0, *(seconds for saved, seconds, _ in self.saves if saved == job)]
        return [after - before for before, after in pairwise(done)]

    def events(self, job: JobId) -> list[str]:
        return [event.kind for event in JournalReader(self.journal_path).events(job)]


@pytest.mark.parametrize("mode", ["slurm", "node"])
@pytest.mark.parametrize("deltas", [False, True])
def test_on_its_gpus_it_saves_as_often_as_the_site_says(tmp_path: Path, mode: str, deltas: bool) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path, mode=mode, deltas=deltas)
        steps: list[Step] = []
        world.on_step = steps.append
        world.start()
        job = world.stored(work_seconds=400)
        await world.until_ended([job], 460)
        await asyncio.sleep(3)
        assert len(world.saves) >= 5
        assert all(EVERY_SECONDS * 0.75 - 2 <= gap <= EVERY_SECONDS + 2 for gap in world.gaps(job))
        assert steps[5:] == STEPS * len(world.saves), "nothing else is done with it"
        assert world.cluster.jobs[job].restart_count == 0
        assert set(world.events(job)) == {"checkpointed"}
        (used,) = [row.gpu_seconds for row in JournalReader(world.journal_path).jobs()]
        assert used == pytest.approx(400 + SAVE_SECONDS * len(world.saves), abs=5), "it is its own time"
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("mode", ["slurm", "node"])
def test_off_its_gpus_it_saves_before_it_would_have_to_stand_still(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path, mode=mode)
        world.start()
        jobs = [world.stored() for _ in range(2)]
        await asyncio.sleep(600)
        for job in jobs:
            assert len(world.gaps(job)) >= 4
            assert all(
                EVERY_SECONDS / 2 - 2 <= gap <= EVERY_SECONDS / 2 + 2 * SLICE_SECONDS
                for gap in world.gaps(job)
            )
        assert {phase for *_, phase in world.saves} == {NodePhase.YIELDED}
        await world.stop()
        world.check()

    run(scenario)


def test_saves_that_take_long_hold_no_turn_up(tmp_path: Path) -> None:
    """There is always one under way."""

    async def scenario() -> None:
        world = Stored(tmp_path, every_seconds=20.0)
        world.nodes.costs = replace(world.nodes.costs, save_seconds=SLICE_SECONDS - 1)
        world.start()
        jobs = [world.stored() for _ in range(3)]
        await asyncio.sleep(300)
        assert len(world.saves) > 20
        assert [world.worked_seconds(job) for job in jobs] == pytest.approx([98.0] * 3, abs=15)
        slices = JournalReader(world.journal_path).slices(jobs[0])
        assert max(each.end - each.start for each in slices if each.end) < 2 * SLICE_SECONDS + 3
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("before", some(range(8), lambda number: number in (0, 3, 5)))
@pytest.mark.parametrize("can_off", [True, False])
def test_slices_as_long_as_the_time_between_saves(tmp_path: Path, before: int, can_off: bool) -> None:
    """No save on GPUs is under way whenever a slice is over: else the job would have the next one, too.
    `before`: jobs with lower numbers, on which the moments of saves hang."""

    async def scenario() -> None:
        own = GandivaSettings(slice_seconds=EVERY_SECONDS, max_jobs_per_gpu=8)
        world = Stored(tmp_path, policy=PRESETS["gandiva"](PolicySettings(gandiva=own), ()))
        world.nodes.costs = replace(world.nodes.costs, save_seconds=EVERY_SECONDS / 6)
        world.start()
        for _ in range(before):
            world.cluster.cancel(world.submit())
        jobs = [world.stored(work_seconds=1e9) for _ in range(2)]
        if not can_off:
            world.nodes.reading_gpus.update(jobs)
        await asyncio.sleep(40 * EVERY_SECONDS)
        assert min(map(world.worked_seconds, jobs)) > 10 * EVERY_SECONDS, [*map(world.worked_seconds, jobs)]
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("full", [False, True])
def test_one_that_cannot_save_off_its_gpus_does_before_it_leaves_them(tmp_path: Path, full: bool) -> None:
    """As one whose CUDA context the driver takes off. `full`: it cannot write, and leaves all the same."""

    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        jobs = [world.stored() for _ in range(2)]
        world.nodes.reading_gpus.update(jobs)
        if full:
            world.nodes.full.update(jobs)
        await asyncio.sleep(600)
        assert min(map(world.worked_seconds, jobs)) > 240
        assert {phase for *_, phase in world.saves} == (set() if full else {NodePhase.PAUSING})
        for job in jobs:
            slices = JournalReader(world.journal_path).slices(job)
            assert max(each.end - each.start for each in slices if each.end) < 2 * SLICE_SECONDS + 3
            assert len(world.gaps(job)) > 5 or full
            assert max(world.gaps(job), default=0.0) < EVERY_SECONDS
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("can_off", [True, False])
def test_rounds_as_long_as_the_time_between_saves(tmp_path: Path, can_off: bool) -> None:
    async def scenario() -> None:
        every_seconds = 360.0  # a round
        policy = PRESETS["gavel-las"](PolicySettings(name="gavel-las"), ())
        world = Stored(tmp_path, every_seconds=every_seconds, policy=policy)
        world.policy_name = "gavel-las"
        world.nodes.costs = replace(world.nodes.costs, save_seconds=every_seconds / 6)
        world.start()
        jobs = [world.stored(work_seconds=1e9) for _ in range(2)]
        if not can_off:
            world.nodes.reading_gpus.update(jobs)
        await asyncio.sleep(20 * every_seconds)
        assert min(map(world.worked_seconds, jobs)) > 6 * every_seconds and len(world.saves) > 8
        await world.stop()
        world.check()

    run(scenario)


def test_a_job_that_cannot_be_suspended_saves(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        job = world.stored()
        world.nodes.reading_gpus.add(job)
        await asyncio.sleep(1)
        assert world.controller is not None
        world.controller.executor.context.memory.change(job).unsuspendable_until = math.inf
        await asyncio.sleep(EVERY_SECONDS + 5)
        assert not world.cycles[-1].snapshot.jobs[job].may_stop and world.saves
        await world.stop()

    run(scenario)


def test_jobs_that_begin_together_do_not_save_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path, gpus=4)
        world.start()
        jobs = [world.stored() for _ in range(4)]
        await asyncio.sleep(70)
        firsts = sorted(world.gaps(job)[0] for job in jobs)
        assert all(after - before > SAVE_SECONDS for before, after in pairwise(firsts))
        await world.stop()

    run(scenario)


def test_without_a_store_or_the_setting_nothing_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        for name, every_seconds in (("said", EVERY_SECONDS), ("not", 0.0)):
            world = Stored(tmp_path / name, every_seconds)
            (tmp_path / name).mkdir()
            world.start()
            job = world.submit(work_seconds=200) if every_seconds else world.stored(work_seconds=200)
            await world.until_ended([job], 210)
            await world.stop()
            assert world.saves == [] and world.events(job) == []

    run(scenario)


@pytest.mark.parametrize("shared", [False, True])
def test_a_save_that_fails_costs_no_turn_and_is_tried_again_later(tmp_path: Path, shared: bool) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        jobs = [world.stored(work_seconds=1000) for _ in range(1 + shared)]
        world.nodes.full.update(jobs)
        await asyncio.sleep(290)
        assert world.saves == [] and world.events(jobs[0]) == ["save-failed"]
        world.nodes.full.clear()
        await asyncio.sleep(300)
        assert {job for job, *_ in world.saves} == set(jobs)
        assert sum(map(world.worked_seconds, jobs)) > 500
        world.check()
        await world.stop()

    run(scenario)


@pytest.mark.parametrize("fatal", [*STEPS, Step.UNDO])
@pytest.mark.parametrize("begun", [False, True])
def test_killed_at_any_step_it_goes_on(tmp_path: Path, fatal: Step, begun: bool) -> None:
    """The next controller does not have all jobs save at once, though it does not know when they did."""

    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        job = world.stored()
        killed = asyncio.Event()

        def die(step: Step) -> None:
            if step is fatal:
                killed.set()
                if not begun:
                    raise asyncio.CancelledError

        await asyncio.sleep(10)
        world.on_step = die
        if fatal is Step.UNDO:
            world.nodes.full.add(job)
        await asyncio.wait_for(killed.wait(), EVERY_SECONDS + 10)
        if begun:
            await asyncio.sleep(0.01)
        await world.kill()
        world.on_step = lambda _step: None
        world.nodes.full.clear()
        world.saves.clear()
        done = world.worked_seconds(job)
        world.start()
        await asyncio.sleep(EVERY_SECONDS / 2 - 5)
        assert world.saves == [] and world.worked_seconds(job) > done + 20
        assert world.cycles[-1].snapshot.jobs[job].phase is Phase.RUNNING
        await asyncio.sleep(EVERY_SECONDS)
        assert world.saves and world.cluster.jobs[job].restart_count == 0
        await world.stop()
        world.check()

    run(scenario)


def test_starts_of_controllers_put_no_save_off_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        job = world.stored()
        for _ in range(8):
            await asyncio.sleep(EVERY_SECONDS * 0.7)
            await world.kill()
            world.start()
        assert len(world.saves) >= 3 and world.worked_seconds(job) > 5 * EVERY_SECONDS
        await world.stop()
        world.check()

    run(scenario)


def test_a_node_that_does_not_answer_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        job = world.stored()
        await asyncio.sleep(10)

        async def silent(node: str, _job_id: JobId, **_: float) -> Saved:
            world.nodes.unreachable.add(node)
            raise NodeUnreachable(node, "no answer from its agent")

        with monkeypatch.context() as patch:
            patch.setattr(world.nodes, "save", silent)
            await asyncio.sleep(EVERY_SECONDS)
            assert world.nodes.unreachable
        world.nodes.unreachable.clear()
        await asyncio.sleep(40)
        assert world.worked_seconds(job) > 60 and world.saves
        await world.stop()
        world.check()

    run(scenario)


def test_at_the_end_of_a_run_a_job_is_saved_once(tmp_path: Path) -> None:
    """And not from time to time, though that is due."""

    async def scenario() -> None:
        world = Stored(tmp_path)
        controller = world.start()
        job = world.stored()
        await asyncio.sleep(20)
        await world.halt()
        controller.executor.context.memory.change(job).saved_seconds = -1000.0
        await put_by(controller, 30.0, lambda _: None)
        assert world.cluster.jobs[job].state is JobState.PENDING and len(world.saves) == 1
        world.close()

    run(scenario)


def test_it_ends_while_it_saves(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Stored(tmp_path)
        world.start()
        job = world.stored()
        world.on_step = lambda step: world.cluster.cancel(job) if step is Step.SAVE else None
        await world.until_ended([job], EVERY_SECONDS + 10)
        next_one = world.submit(work_seconds=10)
        await world.until_ended([next_one], 30)
        await world.stop()
        world.check()

    run(scenario)
