# SPDX-License-Identifier: GPL-2.0-or-later
"""A bug in a part of the loop costs that part, not the daemon: other jobs go on being served."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from controller.act.executor import Executor
from controller.errors import NotLeading
from controller.loop.failures import LONGEST_PAUSE_SECONDS, OVER_SECONDS
from controller.loop.loop import Controller
from controller.loop.records import JobRecords
from controller.loop.repairs import StaleBlocks
from controller.model import Memory, Plan, Snapshot
from controller.observe.observer import Observer
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy, PolicyError
from controller.settings.policies import PolicySettings
from tests.unit.loop.world import SLICE_SECONDS, World, gandiva, run

PARTS = {
    "observer": (Observer, "take"),
    "snapshot": (Observer, "snapshot"),
    "policy": (Controller, "_decide"),
    "executor": (Executor, "apply"),
    "records": (JobRecords, "follow"),
    "left over": (StaleBlocks, "clean"),
}
BEFORE, BROKEN = 30, 100


class Bug:
    """A method that raises KeyError while it is broken."""

    def __init__(self, owner: type, name: str, patch: pytest.MonkeyPatch) -> None:
        self.broken, self.calls, whole = False, 0, getattr(owner, name)

        def method(*args: object, **kwargs: object) -> object:
            if self.broken:
                self.calls += 1
                raise KeyError("nobody expected this")
            return whole(*args, **kwargs)

        patch.setattr(owner, name, method)


@pytest.mark.parametrize("part", PARTS)
def test_it_costs_turns_only_and_all_jobs_have_turns_again_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    bug = Bug(*PARTS[part], monkeypatch)

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.survives = (Exception,)
        jobs = [world.submit(), world.submit()]
        controller = world.start()
        await asyncio.sleep(BEFORE)
        bug.broken = True
        await asyncio.sleep(BROKEN)
        sentences = controller.conditions.sentences
        assert sentences
        for sentence in sentences:
            assert "KeyError" in sentence and "nobody expected this" in sentence and ".py: line " in sentence
        before = [world.worked_seconds(job) for job in jobs]
        bug.broken = False
        await asyncio.sleep(LONGEST_PAUSE_SECONDS + OVER_SECONDS + 6 * SLICE_SECONDS)
        assert controller.conditions.sentences == ()
        assert all(world.worked_seconds(job) > had for job, had in zip(jobs, before, strict=True))
        await world.stop()
        world.check()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert bug.calls > 0
    tracebacks = sum("Traceback" in (record.exc_text or "") for record in caplog.records)
    assert 1 <= tracebacks <= 2, "once for each job at most, not each time"


def test_whole_turns_that_fail_are_rarer_and_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = Bug(Observer, "take", monkeypatch)

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.survives = (Exception,)
        world.submit()
        world.start()
        bug.broken = True
        await asyncio.sleep(600)
        await world.stop()

    run(scenario)
    assert 10 <= bug.calls <= 20


def test_a_view_that_cannot_be_published_keeps_no_job_from_its_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.survives = (Exception,)
        jobs = [world.submit(), world.submit()]
        controller = world.start()
        await asyncio.sleep(1)

        def publish(_turn: object) -> None:
            raise RuntimeError("no view")

        controller._publish = publish
        before = [world.worked_seconds(job) for job in jobs]
        await asyncio.sleep(6 * SLICE_SECONDS)
        more = [world.worked_seconds(job) - had for job, had in zip(jobs, before, strict=True)]
        assert min(more) > SLICE_SECONDS
        await world.stop()
        world.check()

    run(scenario)


def test_actions_on_one_job_that_fail_do_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Executor.apply

    def for_all_but_the_first(self: Executor, actions: list, snapshot: Snapshot) -> None:  # type: ignore[type-arg]
        if any(action.job_id == 1 for action in actions):
            raise KeyError("nobody expected this")
        apply(self, actions, snapshot)

    monkeypatch.setattr(Executor, "apply", for_all_but_the_first)

    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        world.survives = (Exception,)
        first, second = world.submit(), world.submit()
        world.start()
        await asyncio.sleep(BEFORE)
        assert first == 1 and world.running() == {second}
        await world.stop()

    run(scenario)


class Failing:
    """A policy with a bug, from one time on."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.broken = policy, False

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        if self.broken:
            raise PolicyError("it fails")
        return self.policy.plan(snapshot, memory)


@pytest.mark.parametrize("mode", ["slurm", "node"])
def test_suspended_jobs_go_on_where_they_were_while_the_policy_fails(tmp_path: Path, mode: str) -> None:
    """Without it they would wait for as long as the policy fails, beside an empty GPU."""

    async def scenario() -> None:
        policy = Failing(gandiva())
        world = World(tmp_path, gpus=1, policy=policy, mode=mode)
        jobs = [world.submit(work_seconds=60) for _ in range(3)]
        world.start()
        await asyncio.sleep(4 * SLICE_SECONDS)
        assert all(world.worked_seconds(job) > 0 for job in jobs)
        policy.broken = True
        await world.until_ended(jobs, 300)
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize(
    ("survives", "error"), [((), KeyError("a bug")), ((Exception,), NotLeading("another one leads"))]
)
def test_what_a_simulation_must_see_and_the_end_of_leading_end_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: tuple[type[Exception], ...], error: Exception
) -> None:
    def fails(*_args: object, **_kwargs: object) -> None:
        raise error

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.survives = survives
        world.start()
        await asyncio.sleep(5)
        monkeypatch.setattr(Observer, "take", fails)
        await asyncio.sleep(5)
        with pytest.raises(type(error)):
            await world.stop()

    run(scenario)


def test_a_bug_in_a_policy_of_ours_is_an_error_of_the_policy_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.policies.mechanisms.frame.Frame.plan", _raise)
    with pytest.raises(PolicyError, match=r"test_bugs\.py: line \d+: KeyError"):
        make_policy(PolicySettings(name="gandiva")).plan(_NO_SNAPSHOT, Memory())


def _raise(*_args: object) -> Plan:
    raise KeyError("nobody expected this")


_NO_SNAPSHOT = Snapshot(time=0.0, nodes={}, jobs={}, usage={})
