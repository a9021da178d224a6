# SPDX-License-Identifier: GPL-2.0-or-later
"""A suspended job continues on other GPUs, from the state that is in host memory. Its old GPU is another
job's all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.act.actions import Migrate
from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.errors import ClusterRefused, NodeError, NodeUnreachable
from controller.journal.reader import JournalReader
from controller.model import JobId, Phase
from controller.nodes.protocol import Saved
from controller.nodes.simulated import NodeCosts
from controller.policies.moves.balance import Balance
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import GandivaSettings, MigrationSettings
from controller.settings.policies import PolicySettings
from tests.unit.draws import some
from tests.unit.loop.world import World, run

SAVE_SECONDS = 1.0


def policy(slice_seconds: float = 10.0, **migration: float) -> Policy:
    settings = GandivaSettings(slice_seconds=slice_seconds, max_jobs_per_gpu=8)
    return PRESETS["gandiva"](
        PolicySettings(gandiva=settings), (Balance(MigrationSettings.model_validate(migration)),)
    )


class Waiting(World):
    """Two servers of one GPU. On n1 a job runs, and another is suspended, which could save; n2 is closed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=SAVE_SECONDS)
        super().__init__(folder, nodes=2, gpus=1, policy=policy(), node_costs=costs, **options)
        self.steps: list[str] = []
        """Of the mover's operations."""
        self.on_step: Callable[[Step], None] = lambda _step: None

    async def begin(self, **options: Any) -> None:
        self.cluster.set_node("n2", up=False)
        self.mover = self.submit(work_seconds=300, **options)
        self.start()
        await asyncio.sleep(1)
        self.runs = self.submit(work_seconds=300, migrate=False)
        await self.until(lambda: self.running() == {int(self.runs)})
        self.nodes.storing.add(self.mover)
        await asyncio.sleep(1)
        self.done = self.worked_seconds(self.mover)
        # From now on no turn changes.
        self.policy = policy(1000.0, cooldown_seconds=100.0)
        assert self.controller is not None
        self.controller.use("gandiva", self.policy)
        await asyncio.sleep(1)
        assert self.running() == {int(self.runs)} and self.phase() is self.off
        self.began = asyncio.get_running_loop().time()
        self.worked_before = self.worked_seconds(self.runs)
        self.watch()

    def watch(self) -> None:
        assert self.controller is not None
        recorder = self.controller.executor.context.recorder
        begins, original = recorder.operation_begins, recorder.operation_step
        own: set[int] = set()

        def note(action: Any, *arguments: Any) -> int:
            number = begins(action, *arguments)
            if action.job_id == self.mover:
                own.add(number)
            return number

        def step(operation: int, step: Step, now: float) -> None:
            original(operation, step, now)
            if operation in own:
                self.steps.append(step.value)
                self.on_step(step)

        recorder.operation_begins = note  # type: ignore[method-assign, assignment]
        recorder.operation_step = step  # type: ignore[method-assign]

    @property
    def off(self) -> Phase:
        return Phase.SUSPENDED if self.settings.suspend.mode == "slurm" else Phase.YIELDED

    def open(self) -> None:
        """There is a free GPU on n2 from now on."""
        self.cluster.set_node("n2", up=True)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        for _ in range(int(seconds * 100)):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come to that")

    def phase(self) -> Phase:
        return self.cycles[-1].snapshot.jobs[self.mover].phase

    @property
    def restarts(self) -> int:
        return self.cluster.jobs[self.mover].restart_count

    def events(self) -> list[tuple[str, str]]:
        events = JournalReader(self.journal_path).events(self.mover)
        return [(e.kind, e.message) for e in events if e.kind != "balance-planned"]

    def check_as_before(self) -> None:
        """The mover is suspended where it was, with what it had done; the other one has run all the time."""
        self.check()
        assert self.phase() is self.off and self.restarts == 0
        assert self.cluster.jobs[self.mover].nodes == ("n1",)
        assert not self.cycles[-1].snapshot.jobs[self.mover].placement.gpus
        self.check_undisturbed()
        assert self.worked_seconds(self.mover) == self.done

    def check_undisturbed(self) -> None:
        passed = asyncio.get_running_loop().time() - self.began
        assert self.worked_seconds(self.runs) - self.worked_before == pytest.approx(passed)

    async def finish(self, limit_seconds: float = 3000.0) -> None:
        await self.until_ended([self.mover, self.runs], limit_seconds)
        await self.stop()
        self.check()


@pytest.mark.parametrize("mode", ["slurm", "node"])
@pytest.mark.parametrize("deltas", [False, True])
def test_it_goes_to_gpus_that_became_free(tmp_path: Path, mode: str, deltas: bool) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path, deltas=deltas, mode=mode)
        await world.begin()
        world.open()
        await world.until(lambda: world.steps[-1:] == ["requeue"])
        assert world.steps == ["reserve", *(["slurm-resume"] if mode == "slurm" else []), "save", "requeue"]
        assert world.worked_seconds(world.mover) == world.done, "it was on no GPU meanwhile"
        await world.until(lambda: world.running() == {int(world.runs), int(world.mover)})
        assert world.cluster.jobs[world.mover].nodes == ("n2",) and world.restarts == 1
        world.check_undisturbed()
        (decision,) = [
            each
            for each in JournalReader(world.journal_path).decisions(world.mover)
            if each.action == "migrate"
        ]
        assert decision.reason.startswith("migrates: continues on n2: there is room, and it waits for a turn")
        assert [kind for kind, _ in world.events()] == ["checkpointed"]
        await world.until(lambda: not world.cluster.reserved)
        await world.finish(400)

    run(scenario)


def test_no_other_job_gets_its_gpus_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()
        world.open()
        await world.until(lambda: "save" in world.steps)
        late = world.submit(work_seconds=10)
        await world.until(lambda: world.running() == {int(world.runs), int(world.mover)})
        assert world.cluster.jobs[world.mover].nodes == ("n2",)
        assert world.worked_seconds(late) == 0
        await world.until_ended([late], 3000)
        await world.finish()

    run(scenario)


@pytest.mark.parametrize("mode", ["slurm", "node"])
def test_a_save_that_fails_leaves_it_suspended(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path, mode=mode)
        await world.begin()
        world.nodes.full.add(world.mover)
        world.open()
        await world.until(lambda: "undo" in world.steps)
        await asyncio.sleep(3)
        world.check_as_before()
        assert world.events() == [
            (
                "migrate-failed",
                "does not migrate, and stays where it is: "
                f"node n1: rank 0 of job {world.mover} cannot save: no room",
            )
        ]
        assert not world.cluster.reserved and world.steps.count("save") == 1
        job = world.cycles[-1].snapshot.jobs[world.mover]
        assert not job.may_migrate, "it is asked again later"
        await asyncio.sleep(15)
        assert world.cycles[-1].snapshot.jobs[world.mover].may_start, "it may have its turn before that"
        world.nodes.full.clear()
        await world.finish()

    run(scenario)


@pytest.mark.parametrize("call", ["reserve", "requeue"])
def test_what_slurm_refuses_leaves_it_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()

        async def refuse(*_: Any) -> None:
            raise ClusterRefused("not now")

        monkeypatch.setattr(world.cluster, call, refuse)
        world.open()
        await world.until(lambda: call in world.steps)
        await asyncio.sleep(3)
        world.check_as_before()
        kinds = [kind for kind, _ in world.events()]
        assert kinds == (["reserve-failed"] if call == "reserve" else ["checkpointed", "requeue-failed"])
        if call == "reserve":
            assert world.steps == ["reserve"], "Slurm did not resume it"
        job = world.cycles[-1].snapshot.jobs[world.mover]
        assert not job.may_migrate
        await asyncio.sleep(15)
        job = world.cycles[-1].snapshot.jobs[world.mover]
        assert job.may_start and not job.may_migrate, "its turn does not wait for the next try"
        monkeypatch.undo()
        await world.finish()

    run(scenario)


def test_a_node_that_does_not_answer_any_more_leaves_it_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()

        async def silent(node: str, _job_id: JobId, **_: float) -> Saved:
            world.nodes.unreachable.add("n1")
            raise NodeUnreachable(node, "no answer from its agent")

        monkeypatch.setattr(world.nodes, "save", silent)
        world.open()
        await world.until(lambda: "undo" in world.steps)
        await asyncio.sleep(3)
        assert world.state(world.mover) is JobState.SUSPENDED
        monkeypatch.undo()
        world.nodes.unreachable.clear()
        await asyncio.sleep(3)
        world.check_as_before()
        await world.finish()

    run(scenario)


def test_it_ends_while_it_saves(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()
        world.open()
        await world.until(lambda: "save" in world.steps)
        world.cluster.cancel(world.mover)
        await asyncio.sleep(5)
        assert world.state(world.mover) is JobState.ENDED and not world.cluster.reserved
        world.check_undisturbed()
        await world.until_ended([world.runs], 400)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize(
    ("fatal", "again"),
    [(step, 0) for step in (Step.RESERVE, Step.SLURM_RESUME, Step.SAVE, Step.REQUEUE, Step.UNDO)]
    + [(Step.SAVE, 1), (Step.REQUEUE, 1)],
)
def test_killed_at_any_step_it_is_suspended_again(tmp_path: Path, fatal: Step, again: int) -> None:
    """`again`: the step has begun; before Slurm requeues it nothing is lost, after it the job goes on."""

    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()
        killed = asyncio.Event()

        def die(step: Step) -> None:
            if step is fatal:
                killed.set()
                if not again:
                    raise asyncio.CancelledError

        world.on_step = die
        if fatal is Step.UNDO:
            world.nodes.full.add(world.mover)
        world.open()
        await asyncio.wait_for(killed.wait(), 60)
        if again:
            await asyncio.sleep(0.05)
        await world.kill()
        world.nodes.full.clear()
        assert world.running() == {int(world.runs)}
        await asyncio.sleep(3)
        assert world.running() == {int(world.runs)}, "it waits without a controller"
        world.start()
        await asyncio.sleep(4)
        if fatal is Step.REQUEUE and again:
            assert world.restarts == 1
        else:
            world.check_as_before()
            assert not world.cluster.reserved
        await world.finish()
        world.check()

    run(scenario)


@pytest.mark.parametrize(
    "seconds", some([0.3, 0.6, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0], lambda each: each in (0.3, 1.0, 1.8, 2.6))
)
@pytest.mark.parametrize("fault", ["killed controller", "lost answer of a node", "lost answer of Slurm"])
def test_a_fault_in_the_middle_costs_no_job(tmp_path: Path, fault: str, seconds: float) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()
        world.open()
        await asyncio.sleep(seconds)
        if fault == "lost answer of a node":
            world.nodes.lose_answers = 1
        elif fault == "lost answer of Slurm":
            world.cluster.lose_answers = 1
        else:
            await world.kill()
            world.start()
        await asyncio.sleep(20)
        world.check_undisturbed()
        await world.finish()
        assert world.restarts == len([kind for kind, _ in world.events() if kind == "checkpointed"])

    run(scenario)


def test_one_that_slurm_has_forgotten_as_suspended_is_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs for Slurm, and is frozen on its node."""

    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin()
        frozen, original, suspend = {world.mover}, world.nodes.save, world.cluster.suspend

        async def save(node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
            if job_id in frozen:
                raise NodeError(node, "halted", f"process 1 is frozen, and so are all of job {job_id}")
            return await original(node, job_id, deadline_seconds=deadline_seconds)

        async def thaw(job_id: JobId) -> None:
            frozen.discard(job_id)
            await suspend(job_id)

        monkeypatch.setattr(world.nodes, "save", save)
        monkeypatch.setattr(world.cluster, "suspend", thaw)
        world.open()
        await world.until(lambda: world.restarts == 1)
        assert [kind for kind, _ in world.events()] == ["thawed", "checkpointed"]
        world.check_undisturbed()
        await world.finish(400)

    run(scenario)


@pytest.mark.parametrize("why", ["migrate", "agent", "store"])
def test_who_must_not_or_cannot_stays(tmp_path: Path, why: str) -> None:
    async def scenario() -> None:
        world = Waiting(tmp_path)
        await world.begin(**({"migrate": False} if why == "migrate" else {}))
        if why == "agent":
            world.nodes.reading_gpus.add(world.mover)
        if why == "store":
            world.nodes.storing.clear()
        world.nodes._touched["n1"] = None
        await asyncio.sleep(2)
        world.open()
        await asyncio.sleep(10)
        world.check_as_before()
        assert not world.steps and not world.cycles[-1].snapshot.jobs[world.mover].may_migrate
        await world.finish()

    run(scenario)


@pytest.mark.parametrize("agree", [True, False])
def test_a_gang_over_two_nodes_migrates_when_both_tell_of_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agree: bool
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=1, policy=policy())
        gang = world.submit(2, nodes=2, work_seconds=100)
        world.nodes.storing.add(gang)
        controller = world.start()
        await asyncio.sleep(3)
        other = world.submit(2, nodes=2, work_seconds=100)
        for _ in range(300):
            await asyncio.sleep(0.1)
            if world.state(gang) is JobState.SUSPENDED and other in world.running():
                break
        original = world.nodes.save

        async def save(node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
            saved = await original(node, job_id, deadline_seconds=deadline_seconds)
            return Saved(saved.step, 1 if agree or node == "n1" else 2, saved.seconds)

        monkeypatch.setattr(world.nodes, "save", save)
        await asyncio.sleep(1)
        assert world.cycles[-1].snapshot.jobs[gang].may_migrate
        controller.executor.apply([Migrate(gang, "migrates: try")], world.cycles[-1].snapshot)
        await asyncio.sleep(2)
        kinds = [event.kind for event in JournalReader(world.journal_path).events(gang)]
        assert kinds == ["checkpointed" if agree else "migrate-failed"]
        assert world.cluster.jobs[gang].restart_count == agree
        assert agree or world.state(gang) is JobState.SUSPENDED
        await world.until_ended([gang, other], 1000)
        await world.stop()
        world.check()

    run(scenario)
