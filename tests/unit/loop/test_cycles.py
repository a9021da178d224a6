# SPDX-License-Identifier: GPL-2.0-or-later
"""What one node, or the journal, cannot do must not keep the loop from its cycles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.simulated import idle_node
from controller.errors import JournalError
from controller.loop.repairs import STALE_SECONDS
from controller.model import JobId
from controller.nodes.port import NodeSample
from controller.nodes.protocol import NodeJob, NodePhase
from controller.policies.mechanisms.rounds.settings import AllocationTable
from controller.settings.policies import PolicySettings
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.test_surviving import Forgotten
from tests.unit.loop.world import World, fifo, run

GONE = JobId(999)


class LeftBehind(Forgotten):
    """The control block of a job that is gone."""

    def _lived_on(self, sample: NodeSample) -> NodeSample:
        sample = super()._lived_on(sample)
        block = NodeJob(GONE, NodePhase.RUNNING, (0,))
        return NodeSample(sample.node, sample.time, sample.gpus, {GONE: block, **sample.jobs})


class Slow(LeftBehind):
    """Takes for ever to remove a control block."""

    asked = 0

    async def forget(self, node: str, job_id: JobId) -> None:
        self.asked += 1
        await asyncio.Event().wait()


def test_a_control_block_that_takes_long_to_remove_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its lock may be held for as long as another agent offloads, and its user may have filled it."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        nodes = Slow(world.cluster)
        world.node_port = world.nodes = nodes
        world.start()
        await asyncio.sleep(2 * STALE_SECONDS)
        job = world.submit(work_seconds=5)
        await world.until_ended([job], 60)
        assert nodes.asked == 1, "it is asked again only when the first try is over"
        await world.stop()

    run(scenario)


class Counting(LeftBehind):
    """Says how often a control block was to be removed."""

    asked = 0

    async def forget(self, node: str, job_id: JobId) -> None:
        self.asked += 1


@pytest.mark.parametrize("alive_by", ["with_session", "with_memory"])
def test_a_job_that_lives_keeps_its_control_block_though_slurm_has_forgotten_it(
    tmp_path: Path, alive_by: str
) -> None:
    """slurmctld may have lost its memory, and find the job again when its node registers anew."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        nodes = Counting(world.cluster)
        world.node_port = world.nodes = nodes
        setattr(nodes, alive_by, frozenset({GONE}))
        world.start()
        await asyncio.sleep(4 * STALE_SECONDS)
        assert nodes.asked == 0
        setattr(nodes, alive_by, frozenset())
        await asyncio.sleep(STALE_SECONDS / 2)
        assert nodes.asked == 0, "one look does not count"
        await asyncio.sleep(STALE_SECONDS)
        assert nodes.asked > 0
        await world.stop()

    run(scenario)


def test_a_node_that_is_taken_out_of_slurm_is_no_trouble_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=2)
        world.nodes.unreachable.add("n2")
        controller = world.start()
        await asyncio.sleep(3)
        assert len(controller.conditions.sentences) == 1 and "n2" in controller.conditions.sentences[0]
        del world.cluster.nodes["n2"]
        await asyncio.sleep(3)
        assert not controller.conditions.sentences
        await world.stop()

    run(scenario)


def test_types_in_the_settings_that_no_node_has_are_a_condition(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        world.policy_name = "gavel-cost"
        policy = PolicySettings(name="gavel-cost", allocation=AllocationTable(prices={"h100": 2.0}))
        world.settings = world.settings.model_copy(update={"policy": policy})
        controller = world.start()
        await asyncio.sleep(3)
        (sentence,) = controller.conditions.sentences
        assert sentence.startswith("policy.allocation.prices: 'h100' is none of the types ")
        world.cluster.nodes["n9"] = idle_node("n9", "h100", 1, "", 8, 2**30)
        await asyncio.sleep(3)
        assert not controller.conditions.sentences
        await world.stop()

    run(scenario)


def broken(*_: Any) -> Any:
    raise JournalError("cannot read the journal: disk I/O error")


def test_a_journal_that_cannot_be_read_does_not_keep_another_policy_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon takes over new settings in a signal handler: an error there would end half-way."""

    async def scenario() -> None:
        world = World(tmp_path)
        controller = world.start()
        await asyncio.sleep(2)
        monkeypatch.setattr(world._journal, "load_state", broken)
        controller.use("fifo", fifo())
        job = world.submit(work_seconds=5)
        await world.until_ended([job], 60)
        assert "policy fifo begins with nothing remembered" in caplog.text
        await world.stop()

    run(scenario)


def test_a_journal_that_cannot_be_read_at_first_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that ended while no controller was there are looked for as soon as that works."""

    async def scenario() -> None:
        world = World(tmp_path)
        world.start()
        vanished = world.submit(work_seconds=1e6)
        await asyncio.sleep(5)
        await world.kill()
        world.cluster.cancel(vanished)
        del world.cluster.jobs[vanished]
        world.start()
        journal = world._journal
        assert journal is not None
        with monkeypatch.context() as patched:
            patched.setattr(journal, "end_gone", broken)
            await asyncio.sleep(3)
        ended: list[list[JobId]] = []
        real = journal.end_gone
        monkeypatch.setattr(journal, "end_gone", lambda *a: ended.append(real(*a)))
        await asyncio.sleep(3)
        assert ended == [[vanished]]
        await world.stop()

    run(scenario)


def test_a_user_whose_name_is_not_found_for_a_while_is_the_same_user(tmp_path: Path) -> None:
    """Taken for another's, his job would be left out of a look, and its GPUs given away."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        job = world.submit(work_seconds=60, uid=2001)
        world.start()
        await asyncio.sleep(10)
        assert world.running() == {job}
        for name in ("2001", "alice"):
            world.cluster.jobs[job].user = name
            world.cluster.touch(job)
            await asyncio.sleep(5)
        assert all(job in cycle.snapshot.jobs for cycle in world.cycles if cycle.snapshot.time > 1)
        world.cluster.jobs[job].user = "bob"
        world.cluster.touch(job)
        await asyncio.sleep(5)
        assert not all(job in cycle.snapshot.jobs for cycle in world.cycles if cycle.snapshot.time > 1)
        await world.stop()

    run_virtual(scenario())
