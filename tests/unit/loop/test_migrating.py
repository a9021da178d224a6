# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that starts again from a checkpoint continues on other GPUs, so that a gang finds its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.act.actions import Migrate
from controller.act.recorder import Step
from controller.errors import ClusterRefused, NodeError
from controller.journal.reader import JournalReader
from controller.model import JobId, Phase
from controller.nodes.protocol import Saved
from controller.nodes.simulated import PROGRAM, NodeCosts
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.moves.balance import Balance
from controller.policies.moves.defragment import Defragment
from controller.policies.moves.locality import Locality
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import (
    DefragmentSettings,
    LocalitySettings,
    MigrationSettings,
)
from controller.settings.policies import PolicySettings
from tests.unit.draws import some
from tests.unit.loop.world import World, gandiva, run


def move(**migration: float) -> Defragment:
    """It clears servers that are half free."""
    return Defragment(DefragmentSettings(free_fraction=0.5), MigrationSettings.model_validate(migration))


@pytest.fixture(params=["gandiva", "fifo-skip", "gavel-las"])
def policy(request: pytest.FixtureRequest) -> Policy:
    if request.param == "gavel-las":
        # Within a round nothing but a move makes room for a gang.
        return PRESETS["gavel-las"](
            PolicySettings(name="gavel-las", rounds=RoundSettings(round_seconds=1000.0)), (move(),)
        )
    if request.param == "gandiva":
        return gandiva(move())
    return PRESETS["fifo-skip"](PolicySettings(), (move(),))


def nodes(world: World, *jobs: JobId) -> list[tuple[str, ...]]:
    return [world.cluster.jobs[job].nodes for job in jobs]


@dataclass
class Fragmented:
    """Two nodes of two GPUs: one job on each, and a gang that needs both GPUs of one of them."""

    world: World
    mover: JobId
    stays: JobId
    at: str
    """Where the job is that can migrate."""

    async def gang(self, seconds: float = 5) -> JobId:
        found = self.world.submit(2, work_seconds=30)
        await asyncio.sleep(seconds)
        return found

    def operations(self, job: JobId) -> list[str]:
        decisions = JournalReader(self.world.journal_path).decisions(job)
        return [decision.action for decision in decisions]

    def events(self, job: JobId) -> list[tuple[str, str]]:
        """But for those of the plan."""
        events = JournalReader(self.world.journal_path).events(job)
        return [(e.kind, e.message) for e in events if e.kind != "defragment-planned"]


async def fragmented(
    folder: Path, policy: Policy, *, deltas: bool = False, store: bool = False, **options: object
) -> Fragmented:
    costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=1.0)
    world = World(folder, nodes=2, gpus=2, policy=policy, deltas=deltas, node_costs=costs)
    mover = world.submit(1, work_seconds=300, **options)
    world.start()
    await asyncio.sleep(3)
    (at,) = nodes(world, mover)
    world.cluster.set_node(at[0], up=False)
    stays = world.submit(1, work_seconds=300)
    await asyncio.sleep(3)
    world.cluster.set_node(at[0], up=True)
    await asyncio.sleep(3)
    assert sorted(nodes(world, mover, stays)) == [("n1",), ("n2",)], "one GPU is free on each"
    if store:
        # Only when it has run for a while, and nothing else of it changes.
        world.nodes.storing.add(mover)
        world.nodes._touched[at[0]] = None
        await asyncio.sleep(3)
    return Fragmented(world, mover, stays, at[0])


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_a_gang_starts_where_a_job_has_left(
    tmp_path: Path, policy: Policy, store: bool, deltas: bool
) -> None:
    options = {} if store else {"suspend": "requeue"}

    async def scenario() -> None:
        site = await fragmented(tmp_path, policy, deltas=deltas, store=store, **options)
        world, mover, stays = site.world, site.mover, site.stays
        gang = await site.gang()
        assert nodes(world, mover, stays) == [nodes(world, stays)[0]] * 2
        assert nodes(world, gang) == [(site.at,)]
        decisions = JournalReader(world.journal_path).decisions(mover)
        action = "migrate" if store else "requeue"
        reasons = [decision.reason for decision in decisions if decision.action == action]
        to = nodes(world, stays)[0][0]
        assert reasons == [f"migrates: continues on {to}: {site.at} is cleared for job {gang} (2 GPUs)"]
        published = [words for kind, words in site.events(mover) if kind == "checkpointed"]
        assert [words.split(" is ")[1] for words in published] == [
            "generation 1 of its checkpoint store"
        ] * store
        await world.until_ended([gang, mover], 600)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("suspended", [True, False])
def test_a_job_that_takes_turns_goes_to_gpus_that_became_free(tmp_path: Path, suspended: bool) -> None:
    """The suspended one where it can save; else the one that runs. The other one has the old GPU for itself
    from then on."""

    async def scenario() -> None:
        policy = gandiva(Balance(MigrationSettings()))
        costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=1.0)
        world = World(tmp_path, nodes=2, gpus=1, policy=policy, node_costs=costs)
        world.cluster.set_node("n2", up=False)
        world.start()
        pair = [world.submit(1, work_seconds=300) for _ in range(2)]
        await asyncio.sleep(30)
        world.nodes.storing |= set(pair)
        if not suspended:
            world.nodes.reading_gpus |= set(pair)
        await asyncio.sleep(60)
        world.cluster.set_node("n2", up=True)
        await asyncio.sleep(60)
        counts = [world.cluster.jobs[job].restart_count for job in pair]
        assert sum(counts) == 1, "one job has migrated, and none goes back"
        assert sorted(nodes(world, *pair)) == [("n1",), ("n2",)]
        (mover,) = [job for job in pair if world.cluster.jobs[job].restart_count]
        decisions = JournalReader(world.journal_path).decisions(mover)
        (reason,) = [decision.reason for decision in decisions if decision.action == "migrate"]
        assert ("it waits for a turn" if suspended else f"and job {min(set(pair) - {mover})} waits") in reason
        await world.until_ended(pair, 2000)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("store", [False, True])
def test_a_spread_gang_comes_together_where_it_has_a_gpu_already(tmp_path: Path, store: bool) -> None:
    """One of its new GPUs is its own up to then: it leaves it, and starts on it again."""
    options = {} if store else {"suspend": "requeue"}

    async def scenario() -> None:
        policy = PRESETS["fifo-skip"](PolicySettings(), (Locality(LocalitySettings(), MigrationSettings()),))
        costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=1.0)
        world = World(tmp_path, nodes=2, gpus=2, policy=policy, node_costs=costs)
        departs = world.submit(1, work_seconds=60)
        world.start()
        await asyncio.sleep(3)
        (at,) = nodes(world, departs)
        world.cluster.set_node(at[0], up=False)
        stays = world.submit(1, work_seconds=600)
        await asyncio.sleep(3)
        world.cluster.set_node(at[0], up=True)
        await asyncio.sleep(3)
        gang = world.submit(2, work_seconds=300, nodes=None, **options)
        await asyncio.sleep(5)
        assert len(nodes(world, gang)[0]) == 2
        if store:
            world.nodes.storing.add(gang)
            world.nodes._touched.update(dict.fromkeys(world.cluster.nodes))
        await world.until_ended([departs], 200)
        await asyncio.sleep(15)
        assert nodes(world, gang) == [at] != nodes(world, stays)
        decisions = JournalReader(world.journal_path).decisions(gang)
        action = "migrate" if store else "requeue"
        (reason,) = [decision.reason for decision in decisions if decision.action == action]
        assert "it was spread over 2 nodes" in reason
        await world.until_ended([gang, stays], 2000)
        await world.stop()
        world.check()

    run(scenario)


def test_nothing_is_requeued_before_the_generation_is_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = await fragmented(tmp_path, gandiva(move()), store=True)
        world, mover = site.world, site.mover
        world.nodes.costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=100.0)
        await site.gang(50)
        assert world.cluster.jobs[mover].restart_count == 0 and "migrate" in site.operations(mover)
        assert not site.events(mover)
        await asyncio.sleep(60)
        assert world.cluster.jobs[mover].restart_count == 1
        await world.stop()
        world.check()

    run(scenario)


def test_a_save_that_fails_leaves_the_job_where_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = await fragmented(tmp_path, gandiva(move()), store=True)
        world, mover = site.world, site.mover
        world.nodes.full.add(mover)
        before = world.worked_seconds(mover)
        gang = await site.gang(10)
        assert nodes(world, mover) == [(site.at,)] and world.cluster.jobs[mover].restart_count == 0
        assert mover in world.running() and gang not in world.running()
        assert world.worked_seconds(mover) > before + 8
        kinds = dict(site.events(mover))
        assert kinds == {
            "migrate-failed": "does not migrate, and stays where it is: "
            f"node {site.at}: rank 0 of job {mover} cannot save: no room"
        }
        await world.stop()
        world.check()

    run(scenario)


def test_a_requeue_that_slurm_refuses_leaves_the_job_where_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = gandiva(move())
        site = await fragmented(tmp_path, policy, store=True)
        world, mover = site.world, site.mover

        async def refused(job_id: JobId) -> None:
            raise ClusterRefused(f"job {job_id} may not be requeued")

        world.cluster.requeue = refused  # type: ignore[method-assign]
        before = world.worked_seconds(mover)
        await site.gang(10)
        assert nodes(world, mover) == [(site.at,)] and mover in world.running()
        assert world.worked_seconds(mover) > before + 8
        assert [kind for kind, _ in site.events(mover)] == ["checkpointed", "requeue-failed"]
        await world.stop()
        world.check()

    run(scenario)


def test_a_controller_killed_while_a_job_saves_lets_it_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = await fragmented(tmp_path, gandiva(move()), store=True)
        world, mover = site.world, site.mover
        world.nodes.costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=100.0)
        await site.gang(10)
        assert mover not in world.running()
        await world.kill()
        world.nodes.storing.discard(mover)
        world.start()
        await asyncio.sleep(5)
        assert mover in world.running() and world.cluster.jobs[mover].restart_count == 0
        await world.stop()
        world.check()

    run(scenario)


def test_a_job_that_must_not_migrate_or_has_no_store_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        for name, options in (("no", {"store": True, "migrate": False}), ("none", {})):
            folder = tmp_path / name
            folder.mkdir()
            policy = gandiva(move())
            site = await fragmented(folder, policy, **options)
            await site.gang(20)
            assert nodes(site.world, site.mover) == [(site.at,)]
            assert site.operations(site.mover) == ["place"]
            seen = site.world.cycles[-1].snapshot.jobs[site.mover]
            assert seen.phase is Phase.RUNNING and seen.has_store is (name == "no") and not seen.may_migrate
            await site.world.stop()

    run(scenario)


@pytest.mark.parametrize(
    "seconds", some([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5], lambda each: each in (0.5, 1.5, 2.5, 3.5))
)
@pytest.mark.parametrize("fault", ["killed controller", "lost answer"])
def test_a_fault_in_the_middle_costs_no_job(tmp_path: Path, fault: str, seconds: float) -> None:
    """Before, during and after the save, which takes a second."""

    async def scenario() -> None:
        policy = gandiva(move(cooldown_seconds=20.0))
        site = await fragmented(tmp_path, policy, store=True)
        world, mover, stays = site.world, site.mover, site.stays
        gang = await site.gang(seconds)
        if fault == "lost answer":
            world.nodes.lose_answers = 1
        else:
            await world.kill()
            world.start()
        await world.until_ended([gang, mover, stays], 1000)
        await world.stop()
        world.check()
        restarts = world.cluster.jobs[mover].restart_count
        assert restarts == len([kind for kind, _ in site.events(mover) if kind == "checkpointed"])

    run(scenario)


@pytest.mark.parametrize("fatal", [Step.PAUSE, Step.SAVE, Step.REQUEUE, Step.UNDO])
def test_killed_before_any_step_of_a_migration_every_job_goes_on(tmp_path: Path, fatal: Step) -> None:
    async def scenario() -> None:
        policy = gandiva(move(cooldown_seconds=20.0))
        site = await fragmented(tmp_path, policy, store=True)
        world = site.world
        assert world.controller is not None
        killed, recorder = asyncio.Event(), world.controller.executor.context.recorder
        original = recorder.operation_step

        def step_or_die(operation: int, step: Step, now: float) -> None:
            original(operation, step, now)
            if step is fatal:
                killed.set()
                raise asyncio.CancelledError

        recorder.operation_step = step_or_die  # type: ignore[method-assign]
        if fatal is Step.UNDO:
            world.nodes.full.add(site.mover)
        gang = await site.gang(0)
        await asyncio.wait_for(killed.wait(), timeout=60)
        await world.kill()
        assert world.cluster.jobs[site.mover].restart_count == 0
        world.nodes.full.clear()
        await asyncio.sleep(3)
        world.start()
        await world.until_ended([gang, site.mover, site.stays], 1000)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("agree", [True, False])
def test_a_gang_over_two_nodes_migrates_when_both_tell_of_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agree: bool
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=1)
        job = world.submit(2, nodes=2, work_seconds=100)
        world.nodes.storing.add(job)
        controller = world.start()
        await asyncio.sleep(3)
        assert nodes(world, job) == [("n1", "n2")]
        original = world.nodes.save

        async def save(node: str, job_id: JobId, *, deadline_seconds: float) -> Saved:
            saved = await original(node, job_id, deadline_seconds=deadline_seconds)
            return Saved(saved.step, 1 if agree or node == "n1" else 2, saved.seconds)

        monkeypatch.setattr(world.nodes, "save", save)
        controller.executor.apply([Migrate(job, "migrates: try")], world.cycles[-1].snapshot)
        await asyncio.sleep(2)
        kinds = [event.kind for event in JournalReader(world.journal_path).events(job)]
        assert kinds == ["checkpointed" if agree else "migrate-failed"]
        assert world.cluster.jobs[job].restart_count == agree
        await world.until_ended([job], 300)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("outcome", ["read", "refused", "hangs"])
def test_the_node_that_a_job_comes_to_reads_its_programs_meanwhile(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    asked: list[tuple[str, int, list[str], int]] = []

    async def scenario() -> None:
        site = await fragmented(tmp_path, policy, store=True)
        world, mover = site.world, site.mover

        async def warm(node: str, *, uid: int, files: list[str], **_: object) -> None:
            asked.append((node, uid, files, world.cluster.jobs[mover].restart_count))
            if outcome == "refused":
                raise NodeError(node, "bad_request", "verb: 'warm' is none of an older agent's")
            if outcome == "hangs":
                await asyncio.sleep(1000)

        monkeypatch.setattr(world.nodes, "warm", warm)
        gang = await site.gang()
        to = nodes(world, mover)[0][0]
        uid = world.cluster.jobs[mover].uid
        assert asked == [(to, uid, [PROGRAM], 0)], "before the job has left its node"
        assert to != site.at and nodes(world, gang) == [(site.at,)]
        assert [kind for kind, _ in site.events(mover)] == ["checkpointed"]
        await world.stop()
        world.check()

    run(scenario)
