# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs whose turn ends before they have begun to train: they import, or read their data."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Unpack

from controller.cluster.port import ALLOCATED, ClusterJob, ClusterView, JobState
from controller.cluster.simulated import SimulatedJob
from controller.errors import NodeError
from controller.model import JobId, Reason, reason_of
from controller.nodes.port import Leave
from controller.nodes.protocol import Offload, Pause
from controller.simulation.virtual_time import run_virtual
from tests.contract.troubled import TroubledCluster, TroubledNodes
from tests.unit.loop.test_reserving import Port
from tests.unit.loop.world import SLICE_SECONDS, World


class NotYetAttached(TroubledNodes):
    """Nodes as agents are: without a session a job cannot be paused, and only what is on no GPU can be
    stopped all the same when it has several."""

    busy: frozenset[JobId] = frozenset()
    """Without a session, but with memory on its GPUs."""

    async def pause(
        self, node: str, job_id: JobId, *, floor_step: int, wait_seconds: float, sole: bool
    ) -> Pause:
        if job_id in self.idle or job_id in self.busy:
            raise NodeError(node, "not_cooperative", f"job {job_id}: no live session")
        return await super().pause(node, job_id, floor_step=floor_step, wait_seconds=wait_seconds, sole=sole)

    async def checkpoint(self, node: str, job_id: JobId, **leave: Unpack[Leave]) -> Offload:
        if job_id in self.busy:
            raise NodeError(node, "unsupported", f"job {job_id}: only one GPU is supported")
        return await super().checkpoint(node, job_id, **leave)


def test_a_gang_that_has_not_begun_makes_room_at_the_end_of_its_slice(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        world.node_port = world.nodes = NotYetAttached(world.cluster)
        first, second = world.submit(gpus=2), world.submit(gpus=2, work_seconds=5)
        world.nodes.idle.add(first)
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.state(second) is JobState.ENDED
        world.nodes.idle.clear()
        await asyncio.sleep(SLICE_SECONDS)
        assert world.running() == {int(first)}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_gang_on_its_gpus_without_a_session_stays_and_its_user_reads_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        world.node_port = world.nodes = nodes = NotYetAttached(world.cluster)
        first, second = world.submit(gpus=2), world.submit(gpus=2, work_seconds=5)
        nodes.busy = frozenset({first})
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.running() == {int(first)}
        assert world.state(second) is JobState.PENDING
        assert f"job {first} (user alice): could not be taken off" in caplog.text
        assert "no live session; it keeps them" in caplog.text
        await world.stop()
        world.check()

    run_virtual(scenario())


class WithLimit(TroubledCluster):
    """A user's QOS lets some of the jobs start no sooner than others have ended."""

    limited: frozenset[JobId] = frozenset()

    async def job(self, job_id: JobId) -> ClusterJob:
        seen = await super().job(job_id)
        if job_id in self.limited and seen.state is JobState.PENDING:
            return replace(seen, reason="QOSMaxJobsPerUserLimit")
        return seen

    def _start(self, job: SimulatedJob) -> None:
        if job.id not in self.limited:
            super()._start(job)


def test_a_job_at_a_limit_of_slurm_does_not_keep_gpus_from_others(tmp_path: Path) -> None:
    """It waits for jobs of its user to end, which may take days."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = WithLimit(world.cluster.nodes, world.cluster.costs)
        world.cluster = world.cluster_port = cluster
        world.node_port = world.nodes = TroubledNodes(cluster)
        limited, other = world.submit(), world.submit(work_seconds=5, user="bob")
        cluster.limited = frozenset({limited})
        world.start()
        await asyncio.sleep(20.0)
        assert world.state(other) is JobState.ENDED
        assert world.state(limited) is JobState.PENDING
        cluster.limited = frozenset()
        await asyncio.sleep(80.0)
        assert world.running() == {int(limited)}
        await world.stop()
        world.check()

    run_virtual(scenario())


class FailsToLaunch(TroubledCluster):
    """The prolog of some jobs fails: slurmctld holds the job, and drains the node."""

    fails: frozenset[JobId] = frozenset()

    def __init__(self, cluster: TroubledCluster) -> None:
        super().__init__(cluster.nodes, cluster.costs)
        self.held_by_slurm: set[JobId] = set()
        self.launches: list[JobId] = []

    def _seen(self, job: ClusterJob) -> ClusterJob:
        return (
            replace(job, user_hold=True, obstacle="its launch failed")
            if job.id in self.held_by_slurm
            else job
        )

    async def observe(self) -> ClusterView:
        view = await super().observe()
        return replace(view, jobs=tuple(map(self._seen, view.jobs)))

    async def job(self, job_id: JobId) -> ClusterJob:
        return self._seen(await super().job(job_id))

    async def hold(self, job_id: JobId) -> None:
        self.held_by_slurm.discard(job_id)  # as scontrol uhold does to the reason
        await super().hold(job_id)

    def _start(self, job: SimulatedJob) -> None:
        if job.id not in self.fails:
            super()._start(job)
        elif not job.held:
            self.launches.append(job.id)
            self.held_by_slurm.add(job.id)
            job.held = True


def test_a_job_that_slurm_holds_after_a_failed_launch_does_not_go_from_node_to_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = FailsToLaunch(world.cluster)
        world.cluster = world.cluster_port = cluster
        world.node_port = world.nodes = TroubledNodes(cluster)
        failing, other = world.submit(), world.submit(work_seconds=5)
        cluster.fails = frozenset({failing})
        world.start()
        await asyncio.sleep(20.0)
        assert world.state(other) is JobState.ENDED
        await asyncio.sleep(1000.0)
        assert cluster.launches == [failing] and cluster.held_by_slurm == {failing}
        cluster.fails = frozenset()
        await cluster.hold(failing)  # its owner releases it, and the controller has its own hold again
        await asyncio.sleep(80.0)
        assert world.running() == {int(failing)}
        await world.stop()
        world.check()

    run_virtual(scenario())


class Refuses(TroubledCluster):
    """Slurm gives reasons why it starts some jobs not at all, or not on some nodes."""

    def __init__(self, cluster: TroubledCluster) -> None:
        super().__init__(cluster.nodes, cluster.costs)
        self.why: Callable[[SimulatedJob, frozenset[str]], str] = lambda _job, _nodes: ""
        self.tries: list[tuple[float, int, str]] = []

    def _start(self, job: SimulatedJob) -> None:
        nodes = frozenset(gpu.node for gpu in job.wanted)
        job.reason = self.why(job, nodes)
        if not job.held:
            self.tries.append((self.clock(), int(job.id), ",".join(sorted(nodes))))
        if not job.reason:
            super()._start(job)

    def tried(self, *job_ids: int) -> list[tuple[float, int, str]]:
        return [each for each in self.tries if each[1] in job_ids]


def refusing(world: World) -> Refuses:
    cluster = Refuses(world.cluster)
    world.cluster = world.cluster_port = cluster
    world.node_port = world.nodes = TroubledNodes(cluster)
    return cluster


def test_jobs_at_a_users_limit_do_not_keep_gpus_from_others(tmp_path: Path) -> None:
    """`maxjobs=1` and 40 jobs of one user: 39 wait for the first to end."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        cluster = refusing(world)

        def why(job: SimulatedJob, _nodes: frozenset[str]) -> str:
            runs = any(j.user == "alice" and j.state in ALLOCATED for j in cluster.jobs.values())
            return "AssocMaxJobsLimit" if job.user == "alice" and runs else ""

        cluster.why = why
        first = world.submit(work_seconds=400)
        world.start()
        await asyncio.sleep(5.0)
        others = [world.submit(work_seconds=5) for _ in range(40)]
        await asyncio.sleep(20.0)
        bob = world.submit(user="bob", work_seconds=50)
        await asyncio.sleep(80.0)
        assert world.state(bob) is JobState.ENDED
        assert len(cluster.tried(*others)) <= 3, "one at a time, and a minute between"
        await asyncio.sleep(200.0)
        assert world.state(first) is JobState.RUNNING
        await asyncio.sleep(200.0)
        assert world.state(first) is JobState.ENDED
        assert any(world.state(job) is JobState.ENDED for job in others), "the limit has room again"
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_job_within_a_limit_runs_though_a_larger_one_of_its_user_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        cluster = refusing(world)
        cluster.why = lambda job, _nodes: "AssocGrpGRES" if len(job.wanted) == 2 else ""
        large, small = world.submit(gpus=2), world.submit(gpus=1)
        world.start()
        await asyncio.sleep(150.0)
        assert world.running() == {int(small)} and world.state(large) is JobState.PENDING
        await world.stop()
        world.check()

    run_virtual(scenario())


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "Licenses", "InvalidAccount", "Resources"])
def test_jobs_that_slurm_will_not_start_leave_gpus_to_others(tmp_path: Path, reason: str) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=2)
        cluster = refusing(world)
        cluster.why = lambda job, _nodes: reason if job.user == "alice" else ""
        never = [world.submit() for _ in range(4)]
        world.start()
        await asyncio.sleep(1.0)
        bob = world.submit(user="bob", work_seconds=60)
        await asyncio.sleep(200.0)
        assert world.state(bob) is JobState.ENDED
        await asyncio.sleep(7200.0)
        again = [at for at, *_ in cluster.tried(*never)][len(never) :]
        apart = 60.0 if reason == "Resources" else 5.0
        assert min(b - a for a, b in itertools.pairwise(again)) >= apart, "one at a time"
        last_hour = [each for each in cluster.tried(*never) if each[0] > cluster.clock() - 3600]
        assert 1 <= len(last_hour) <= 8, "pauses grow, and end at an hour"
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_no_job_of_a_user_waits_behind_one_that_fails_for_good(tmp_path: Path) -> None:
    """What does not start comes last for as long as it was paused, and then has its place again."""

    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = refusing(world)
        refused = {"now": "Licenses"}
        failing = world.submit(work_seconds=5)
        cluster.why = lambda job, _nodes: refused["now"] if job.id == failing else ""
        world.start()
        await asyncio.sleep(20.0)
        refused["now"] = ""
        for _ in range(30):
            world.submit(user="bob", work_seconds=10)
        await asyncio.sleep(250.0)
        assert world.state(failing) is JobState.ENDED, "it does not starve"
        await world.stop()
        world.check()

    run_virtual(scenario())


class Forgets(Port):
    """Its slurmctld is killed after the first release, and has written down what was before."""

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        if method == "release" and "release" not in self.calls:
            self.calls.append(method)
            return None
        return await super()._call(method, job_id, *arguments)


def test_a_release_that_slurm_forgot_is_no_refusal_of_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.cluster_port = Forgets(world.cluster)
        job = world.submit()
        world.start()
        await asyncio.sleep(20)
        assert world.running() == {job}
        await world.stop()

    run_virtual(scenario())


def test_a_job_goes_to_another_node_than_the_one_that_refused_it(tmp_path: Path) -> None:
    """A maintenance of n1 is announced: Slurm starts nothing there that would last into it."""

    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=2)
        cluster = refusing(world)
        cluster.why = lambda _job, nodes: "ReqNodeNotAvail, May be reserved" if "n1" in nodes else ""
        jobs = [world.submit() for _ in range(2)]
        world.start()
        await asyncio.sleep(60.0)
        assert {cluster.jobs[job].nodes for job in jobs} == {("n2",)}
        assert world.running() == {int(job) for job in jobs}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_turn_that_slurm_refuses_is_not_waited_for_on_the_same_node_for_ever(tmp_path: Path) -> None:
    """Both nodes are full: the job is promised GPUs of n1 for its turn, which refuses it."""

    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=1)
        cluster = refusing(world)
        running = [world.submit() for _ in range(2)]
        world.start()
        await asyncio.sleep(2.0)
        late = world.submit(user="bob")
        cluster.why = lambda job, nodes: "ReqNodeNotAvail" if job.id == late and "n1" in nodes else ""
        await asyncio.sleep(300.0)
        assert cluster.jobs[late].nodes == ("n2",)
        assert world.state(running[0]) is JobState.RUNNING
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_explain_says_why_and_when_a_start_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        cluster = refusing(world)
        cluster.why = lambda _job, _nodes: "PartitionTimeLimit"
        job = world.submit()
        controller = world.start()
        await asyncio.sleep(20.0)
        assert controller.reasons[job].startswith("start failed (PartitionTimeLimit); retry at ")
        assert reason_of(controller.reasons[job]) is Reason.OPERATION_FAILED
        cluster.why = lambda _job, _nodes: "AssocGrpGRES"
        await asyncio.sleep(90.0)
        assert reason_of(controller.reasons[job]) is Reason.AT_LIMIT
        await world.stop()

    run_virtual(scenario())
