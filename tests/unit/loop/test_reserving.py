# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs promised to a job that migrates are kept from ordinary jobs, and from them only as long as needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.port import ALLOCATED, JobState
from controller.cluster.simulated import SlurmCosts
from controller.cluster.simulated_job import SimulatedJob
from controller.errors import ClusterRefused, ClusterUnavailable
from controller.journal.reader import JournalReader
from controller.model import GpuId, JobId, Phase
from controller.policies.moves.defragment import Defragment
from controller.policies.settings import DefragmentSettings, MigrationSettings
from tests.contract.ordinary import submit_ordinary
from tests.contract.passing_on import PassingOn
from tests.contract.troubled import TroubledCluster
from tests.unit.draws import some
from tests.unit.loop.world import World, gandiva, run

STEPS = ("reserve", "requeue", "claim", "prepare", "bind", "release", "await-start")


class Port(PassingOn):
    """Passes all on to the simulated cluster; what is before a call may fail it, or end the controller."""

    def __init__(self, cluster: TroubledCluster) -> None:
        self._cluster = cluster
        self.refused = 0
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def reservations(self) -> Any:
        return await self._cluster.reservations()

    async def shares(self) -> Any:
        return await self._cluster.shares()

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        self.calls.append(method)
        if method == "reserve" and self.refused > 0:
            self.refused -= 1
            raise ClusterRefused("the GPUs are busy")
        return await getattr(self._cluster, method)(job_id, *arguments)


class Moving(World):
    """One job on each of two servers of two GPUs: one that migrates where a gang waits, one that stays."""

    def __init__(self, folder: Path, **options: Any) -> None:
        policy = gandiva(Defragment(DefragmentSettings(free_fraction=0.5), MigrationSettings()))
        super().__init__(folder, nodes=2, gpus=2, policy=policy, **options)
        self.waiting: str | None = None
        """An ordinary job waits for a GPU of this node."""
        self.port = Port(self.cluster)
        self.cluster_port = self.port

    async def begin(self) -> None:
        self.mover = self.submit(1, work_seconds=300, suspend="requeue")
        self.start()
        await asyncio.sleep(3)
        (at,) = self.cluster.jobs[self.mover].nodes
        self.cluster.set_node(at, up=False)
        self.stays = self.submit(1, work_seconds=300)
        await asyncio.sleep(3)
        self.cluster.set_node(at, up=True)
        await asyncio.sleep(3)
        (self.target,) = self.cluster.jobs[self.stays].nodes
        self.source = at
        assert self.source != self.target

    def gang(self) -> JobId:
        return self.submit(2, work_seconds=30)

    async def until_reserved(self) -> None:
        for _ in range(10_000):
            if self.cluster.reserved:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("nothing is reserved")

    def queue_ordinary(self, node: str) -> None:
        """An ordinary job waits there: it starts once no other job has a shard of some GPU."""
        self.waiting = node
        then = self.cluster.on_state

        def on_state(job: SimulatedJob) -> None:
            then(job)
            taken = {
                gpu for each in self.cluster.jobs.values() if each.state in ALLOCATED for gpu in each.binding
            }
            taken.update(*self.cluster.reserved.values())
            free = {GpuId(node, gpu.index) for gpu in self.cluster.nodes[node].gpus} - taken
            if self.waiting and free and not self.ordinary(node):
                submit_ordinary(self.cluster, node, 1)

        self.cluster.on_state = on_state

    def ordinary(self, node: str) -> int:
        """GPUs of a node that ordinary jobs hold."""
        return len(self.cluster.nodes[node].ordinary_gpus)

    def nodes_of(self, job_id: JobId) -> tuple[str, ...]:
        return self.cluster.jobs[job_id].nodes

    async def end(self) -> None:
        """The rest goes well."""
        self.waiting = None
        for name in self.cluster.nodes:
            self.cluster.set_node(name, ordinary_gpus={})
        await self.until_ended([self.mover], 900)
        await asyncio.sleep(3)
        assert self.cluster.reserved == {}
        await self.stop()
        self.check()

    def events(self, kind: str) -> list[str]:
        return [event.message for event in JournalReader(self.journal_path).events() if event.kind == kind]


def test_an_ordinary_job_that_waits_does_not_get_promised_gpus(tmp_path: Path) -> None:
    async def scenario() -> None:
        # It takes a while to get there.
        world = Moving(tmp_path, slurm_costs=SlurmCosts(0.005, 2.0, 5.0))
        await world.begin()
        world.gang()
        await world.until_reserved()
        changes = [call for call in world.port.calls if call in ("reserve", "requeue")]
        assert changes[0] == "reserve", "before it leaves"
        ((job_id, gpus),) = world.cluster.reserved.items()
        assert job_id == world.mover
        assert {gpu.node for gpu in gpus} == {world.target}
        world.queue_ordinary(world.target)
        await asyncio.sleep(20)
        assert world.cluster.jobs[world.mover].binding == gpus, "it is where it was to be"
        assert world.ordinary(world.target) == 0
        assert world.cluster.reserved == {}, "and nothing is reserved any more"
        world.cluster.cancel(world.stays)
        await asyncio.sleep(1)
        assert world.ordinary(world.target) == 1
        await world.end()

    run(scenario)


@pytest.mark.parametrize("failure", [ClusterRefused, ClusterUnavailable])
def test_a_job_whose_gpus_cannot_be_reserved_stays(tmp_path: Path, failure: type[Exception]) -> None:
    async def scenario() -> None:
        world = Moving(tmp_path)
        await world.begin()
        before = world.cluster.jobs[world.mover].restart_count
        reserve = world.cluster.reserve

        async def failing(*_arguments: Any) -> None:
            raise failure("an ordinary job has just taken it")

        world.cluster.reserve = failing  # type: ignore[method-assign,assignment]
        gang = world.gang()
        await asyncio.sleep(10)
        assert world.state(world.mover) is JobState.RUNNING
        assert world.nodes_of(world.mover) == (world.source,)
        assert world.cluster.jobs[world.mover].restart_count == before
        (said,) = world.events("reserve-failed")
        assert said.startswith(f"does not migrate, as {world.target}:")
        assert said.endswith("cannot be kept for it: an ordinary job has just taken it")
        assert world.state(gang) is JobState.PENDING
        world.cluster.reserve = reserve  # type: ignore[method-assign]
        await world.end()

    run(scenario)


def test_gpus_that_leaving_jobs_still_have_are_reserved_when_the_job_has_left(tmp_path: Path) -> None:
    """Slurm may have no core for a reservation where other jobs of ours are on all GPUs; while they are, no
    ordinary job gets one."""

    async def scenario() -> None:
        world = Moving(tmp_path)
        await world.begin()
        assert world.controller is not None
        ledger = world.controller.executor.context.ledger
        ledger.allocated = lambda _gpus: {world.stays}  # type: ignore[method-assign,assignment]
        world.port.refused = 1
        world.gang()
        await asyncio.sleep(10)
        changes = [call for call in world.port.calls if call in ("reserve", "requeue", "unreserve")]
        assert changes[:3] == ["reserve", "requeue", "reserve"]
        assert world.nodes_of(world.mover) == (world.target,)
        await world.end()

    run(scenario)


def test_without_reservations_jobs_migrate_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Moving(tmp_path)
        cluster = world.settings.cluster.model_copy(update={"reserve_seconds": 0.0})
        world.settings = world.settings.model_copy(update={"cluster": cluster})
        await world.begin()
        world.gang()
        await asyncio.sleep(10)
        assert "reserve" not in world.port.calls
        assert world.nodes_of(world.mover) == (world.target,)
        await world.end()

    run(scenario)


def test_reservations_of_others_times_are_removed_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Moving(tmp_path)
        await world.begin()
        await world.kill()
        gpus = world.cluster.jobs[world.stays].binding
        world.cluster.reserved = {JobId(77): gpus, world.stays: gpus}
        world.start()
        await asyncio.sleep(3)
        assert world.cluster.reserved == {}
        await world.end()

    run(scenario)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after_seconds", some([0.0, 0.02], lambda each: not each))
def test_no_reservation_outlives_a_kill(tmp_path: Path, step: str, after_seconds: float) -> None:
    """Killed at each step of a migration: the next controller keeps or removes what was reserved."""

    async def scenario() -> None:
        world = Moving(tmp_path)
        await world.begin()
        assert world.controller is not None
        recorder, at = world.controller.executor.context.recorder, asyncio.Event()
        original = recorder.operation_step
        moving = False

        def noted(operation: int, taken: Any, now: float) -> None:
            nonlocal moving
            original(operation, taken, now)
            moving = moving or taken.value == "reserve"
            if moving and taken.value == step:
                at.set()

        recorder.operation_step = noted  # type: ignore[method-assign,assignment]
        world.gang()
        await asyncio.wait_for(at.wait(), 60)
        await asyncio.sleep(after_seconds)
        await world.kill()
        world.start()
        for _ in range(40):
            await asyncio.sleep(1)
            promised = world.cycles[-1].snapshot.jobs[world.mover].promised
            switching = world.cycles[-1].snapshot.jobs[world.mover].switching
            if not promised and not switching and not world.cluster.reserved:
                break
        assert world.cluster.reserved == {}
        await world.end()

    run(scenario)


def test_a_promise_holds_while_slurm_ends_the_run_that_a_killed_controller_requeued(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Moving(tmp_path, slurm_costs=SlurmCosts(0.005, 0.3, 5.0))
        await world.begin()
        gang = world.gang()
        for _ in range(1000):
            if world.state(world.mover) is JobState.COMPLETING:
                break
            await asyncio.sleep(0.01)
        await world.kill()
        (gpus,) = world.cluster.reserved.values()
        world.start()
        await asyncio.sleep(2)
        job = world.cycles[-1].snapshot.jobs[world.mover]
        assert job.phase is Phase.COMPLETING and job.promised == gpus and job.leaving
        await asyncio.sleep(30)
        assert world.cluster.jobs[world.mover].binding == gpus
        assert world.nodes_of(gang) == (world.source,)
        await world.end()

    run(scenario)


def test_a_reservation_ends_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Moving(tmp_path)
        cluster = world.settings.cluster.model_copy(update={"reserve_seconds": 30.0})
        world.settings = world.settings.model_copy(update={"cluster": cluster})
        await world.begin()
        world.gang()
        await world.until_reserved()
        await world.kill()
        assert world.cluster.reserved
        await asyncio.sleep(31)
        assert world.cluster.reserved == {}
        world.start()
        await world.end()

    run(scenario)
