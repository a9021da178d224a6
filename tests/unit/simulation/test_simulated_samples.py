# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated clusters and nodes that answer with differences answer, in the end, what others answer in full.
And how fast simulated jobs go on GPUs that they share."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller.cluster.simulated import SimulatedJob, make_nodes, request_text
from controller.errors import ClusterError, NodeError
from controller.model import GpuId, JobId
from controller.nodes.port import NodeSample
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.virtual_time import run_virtual
from tests.contract.adding_up import AddedUp, Samples
from tests.contract.troubled import TroubledCluster, TroubledNodes

JOBS, GPUS = 8, 4
GPU_PAIRS = [(0, 1), (2, 3), (0, 2)]


class Site:
    """A cluster of two nodes, and what happens on it."""

    def __init__(self, *, deltas: bool) -> None:
        nodes = {node.name: node for node in make_nodes(["n1", "n2"], GPUS)}
        self.cluster = TroubledCluster(nodes, deltas=deltas, keep_ended=False)
        self.nodes = TroubledNodes(self.cluster, deltas=deltas)
        for number in range(1, JOBS + 1):
            self.cluster.add(SimulatedJob(JobId(number), "alice", request_text(2), 1e9, 0.0))

    async def do(self, what: str, job_id: JobId, node: str, gpus: tuple[int, ...]) -> str:
        """One thing; what became of it."""
        cluster, nodes = self.cluster, self.nodes
        try:
            match what:
                case "place":
                    await nodes.prepare(node, job_id, uid=1, gpus=gpus, binding=gpus, deadline_seconds=1)
                    await cluster.bind(job_id, frozenset(GpuId(node, ordinal) for ordinal in gpus))
                    await cluster.release(job_id)
                case "yield":
                    await nodes.offload(
                        node, job_id, residual_limit_bytes=0, release_context=True, deadline_seconds=1
                    )
                case "resume":
                    await nodes.resume(node, job_id, gpus=gpus, binding=gpus, deadline_seconds=1)
                case "suspend in Slurm":
                    await cluster.suspend(job_id)
                case "resume in Slurm":
                    await cluster.resume(job_id)
                case "requeue":
                    await cluster.requeue(job_id)
                case "forget":
                    await nodes.forget(node, job_id)
                case "end":
                    await cluster.end(job_id, "no reason")
        except (ClusterError, NodeError) as error:
            return str(error)
        return "done"


WORDS = ("place", "yield", "resume", "suspend in Slurm", "resume in Slurm", "requeue", "forget", "end")


def plain(sample: NodeSample | NodeError) -> tuple[object, ...]:
    """All of it, but how far jobs got, which passes by itself."""
    if isinstance(sample, NodeError):
        return (str(sample),)
    jobs = [(job.job_id, job.phase, job.gpus, len(job.ranks)) for _, job in sorted(sample.jobs.items())]
    return sample.node, jobs, tuple(sample.gpus)


@pytest.mark.parametrize("seed", range(20))
def test_differences_add_up_to_what_is_there(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        told, whole = Site(deltas=True), Site(deltas=False)
        views, samples = AddedUp(told.cluster), Samples(told.nodes)
        ends, shown = set(), 0
        for _ in range(60):
            for _ in range(rng.randint(0, 3)):
                one = rng.choice(WORDS), JobId(rng.randint(1, JOBS)), rng.choice(["n1", "n2"])
                gpus = rng.choice(GPU_PAIRS)
                end = await told.do(*one, gpus)
                assert end == await whole.do(*one, gpus)
                ends.add((one[0], end == "done"))
            if rng.random() < 0.1:
                for site in (told, whole):
                    site.nodes.unreachable ^= {"n2"}
                    site.cluster.set_node("n2", up=bool(site.nodes.unreachable))
            view, full = await views.observe(), await whole.cluster.observe()
            assert {job.id: job for job in view.jobs} == {job.id: job for job in full.jobs}
            assert sorted(view.nodes, key=lambda n: n.name) == sorted(full.nodes, key=lambda n: n.name)
            seen = await samples.look()
            for name, sample in (await whole.nodes.observe(1.0)).items():
                assert plain(seen[name]) == plain(sample)
            await views.observe(), await whole.cluster.observe()
            assert views.last is not None
            shown += len(views.last.jobs) + len(views.last.nodes) + len(await told.nodes.observe(1.0))
            await asyncio.sleep(1.0)
        assert {what for what, done in ends if done} >= {"place", "requeue", "forget"}
        assert told.nodes.violations == whole.nodes.violations
        assert shown == 0, "what was shown once is shown again"

    run_virtual(scenario())


def test_two_jobs_on_one_gpu_are_noticed() -> None:
    async def scenario() -> None:
        site = Site(deltas=True)
        for job_id in (JobId(1), JobId(2)):
            await site.cluster.bind(job_id, frozenset({GpuId("n1", 0), GpuId("n1", 1)}))
            await site.cluster.release(job_id)  # without the node's leave
        assert len(site.nodes.violations) == 2
        assert "jobs 1 and 2 on n1:0" in site.nodes.violations[0]

    run_virtual(scenario())


def test_counted_gpus_have_no_places() -> None:
    both = parse_cluster("v100:6,k80:4,v100:2", 2).counted(by_node=False)
    assert [(node.name, len(node.gpus)) for node in both.nodes] == [("v100", 8), ("k80", 4)]
    assert both.gpus == 12
    single = parse_cluster("v100:6,v100:2", 2).counted(by_node=False)
    assert [len(node.gpus) for node in single.nodes] == [1] * 8
    assert len({node.name for node in single.nodes}) == 8
    one = parse_cluster("v100:6,v100:2", 2).counted(by_node=True)
    assert [(node.name, len(node.gpus)) for node in one.nodes] == [("v100", 8)]


def test_jobs_on_one_gpu_get_parts_of_it_while_they_share_it() -> None:
    """The first is alone for 10 s, then goes at half its speed, then is alone again."""

    async def scenario() -> None:
        site, both = Site(deltas=True), frozenset({JobId(1), JobId(2)})
        gpu, cluster = frozenset({GpuId("n1", 0)}), site.cluster
        cluster.jobs[JobId(1)].work_seconds, cluster.jobs[JobId(2)].work_seconds = 30.0, 10.0
        for job_id in sorted(both):
            await site.nodes.prepare(
                "n1", job_id, uid=1, gpus=(0,), binding=(0,), deadline_seconds=1, beside=both - {job_id}
            )
            await cluster.bind(job_id, gpu)
            await cluster.release(job_id)
            await asyncio.sleep(10.0)
        assert cluster.jobs[JobId(1)].done_at(20.0) == 15.0
        (rank,) = (await Samples(site.nodes).look())["n1"].jobs[JobId(1)].ranks  # type: ignore[union-attr]
        assert (rank.steps_done, rank.step_seconds) == (15, 2.0)
        await asyncio.sleep(100.0)
        assert [cluster.jobs[job_id].end_time for job_id in sorted(both)] == [40.0, 30.0]
        assert site.nodes.violations == []

    run_virtual(scenario())


def test_a_job_that_left_its_gpu_slows_no_other_one() -> None:
    async def scenario() -> None:
        site, both = Site(deltas=True), frozenset({JobId(1), JobId(2)})
        cluster = site.cluster
        cluster.rate = lambda _job, beside: 0.8 if beside else 1.0
        for job_id in sorted(both):
            await site.nodes.prepare(
                "n1", job_id, uid=1, gpus=(0,), binding=(0,), deadline_seconds=1, beside=both - {job_id}
            )
            await cluster.bind(job_id, frozenset({GpuId("n1", 0)}))
            await cluster.release(job_id)
        await asyncio.sleep(10.0)
        await site.do("yield", JobId(2), "n1", (0,))
        await asyncio.sleep(10.0)
        assert [cluster.jobs[job_id].done_at(20.0) for job_id in sorted(both)] == [18.0, 8.0]

    run_virtual(scenario())


def test_a_clock_of_its_own_is_read() -> None:
    async def main() -> float:
        nodes = {node.name: node for node in make_nodes(["n1"], 1)}
        return (await TroubledCluster(nodes, clock=lambda: 77.0).observe()).time

    assert run_virtual(main()) == 77.0
