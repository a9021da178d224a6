# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated nodes that tell only what changed tell, in the end, what nodes that tell everything tell."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller.slurm.simulated import SimulatedCluster, SimulatedJob, make_nodes, request_text
from controller.errors import ClusterError, NodeError
from controller.model import GpuId, JobId
from controller.nodes.port import NodeSample
from controller.nodes.simulated import SimulatedNodes
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.virtual_time import run_virtual

JOBS, GPUS = 8, 4
GPU_PAIRS = [(0, 1), (2, 3), (0, 2)]


class Site:
    """A cluster of two nodes, and what happens on it."""

    def __init__(self, *, partial: bool) -> None:
        self.cluster = SimulatedCluster({n.name: n for n in make_nodes(["n1", "n2"], GPUS)}, partial=partial)
        self.nodes = SimulatedNodes(self.cluster)
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
        except (ClusterError, NodeError) as error:
            return str(error)
        return "done"


WORDS = ("place", "yield", "resume", "suspend in Slurm", "resume in Slurm", "requeue", "forget")


def plain(sample: NodeSample | NodeError) -> tuple[object, ...]:
    """All of it, but how far jobs got, which passes by itself."""
    assert isinstance(sample, NodeSample)
    jobs = [(job.job_id, job.phase, job.gpus, len(job.ranks)) for _, job in sorted(sample.jobs.items())]
    return sample.node, jobs, tuple(sample.gpus)


@pytest.mark.parametrize("seed", range(20))
def test_told_piece_by_piece_it_is_the_same(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        told, whole = Site(partial=True), Site(partial=False)
        seen: dict[str, NodeSample | NodeError] = {}
        ends = set()
        for _ in range(60):
            for _ in range(rng.randint(0, 3)):
                one = rng.choice(WORDS), JobId(rng.randint(1, JOBS)), rng.choice(["n1", "n2"])
                gpus = rng.choice(GPU_PAIRS)
                end = await told.do(*one, gpus)
                assert end == await whole.do(*one, gpus)
                ends.add((one[0], end == "done"))
            seen |= await told.nodes.observe(1.0)
            for name, sample in (await whole.nodes.observe(1.0)).items():
                assert plain(seen[name]) == plain(sample)
            await asyncio.sleep(1.0)
        assert {what for what, done in ends if done} >= {"place", "requeue", "forget"}
        assert told.nodes.violations == whole.nodes.violations

    run_virtual(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_its_own_answers_are_those_that_a_look_at_each_gpu_gives(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        site = Site(partial=True)
        asked = frozenset(JobId(number) for number in range(1, JOBS))
        for _ in range(60):
            await site.do(
                rng.choice(WORDS),
                JobId(rng.randint(1, JOBS)),
                rng.choice(["n1", "n2"]),
                rng.choice(GPU_PAIRS),
            )
            for sample in (await site.nodes.observe(1.0)).values():
                assert isinstance(sample, NodeSample)
                looked = NodeSample(sample.node, sample.time, sample.gpus, sample.jobs)
                assert sample.living(asked) == looked.living(asked)
                for job_id in asked:
                    assert sample.memory_bytes_of(job_id) == looked.memory_bytes_of(job_id)

    run_virtual(scenario())


def test_two_jobs_on_one_gpu_are_noticed() -> None:
    async def scenario() -> None:
        site = Site(partial=True)
        for job_id in (JobId(1), JobId(2)):
            await site.cluster.bind(job_id, frozenset({GpuId("n1", 0), GpuId("n1", 1)}))
            await site.cluster.release(job_id)  # (nobody asked the node)
        assert len(site.nodes.violations) == 2
        assert "jobs 1 and 2 on n1:0" in site.nodes.violations[0]

    run_virtual(scenario())


def test_counted_gpus_are_one_node_of_each_type() -> None:
    counted = parse_cluster("v100:6,k80:4,v100:2", 2).counted()
    assert [(node.name, len(node.gpus)) for node in counted.nodes] == [("v100", 8), ("k80", 4)]
    assert counted.gpus == 12
