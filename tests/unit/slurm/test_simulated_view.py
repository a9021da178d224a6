# SPDX-License-Identifier: GPL-2.0-or-later
"""A simulated cluster that answers with what changed keeps its views of jobs: none may be out of date."""

from __future__ import annotations

import asyncio

from controller.slurm.port import JobState, SlurmJob
from controller.slurm.simulated import SimulatedCluster, SlurmCosts, make_nodes, request_text
from controller.model import GpuId
from controller.simulation.virtual_time import run_virtual

BINDING = frozenset({GpuId("n1", 0)})


def test_a_kept_view_is_never_out_of_date() -> None:
    async def main() -> list[SlurmJob]:
        nodes = {node.name: node for node in make_nodes(["n1"], 1)}
        cluster = SimulatedCluster(nodes, SlurmCosts(requeue_seconds=5), partial=True)
        job_id = cluster.submit(request_text(1), 100.0)
        seen: list[SlurmJob] = []

        async def look() -> None:
            seen.append(await cluster.job(job_id))
            assert seen[-1] == cluster._made_view(cluster.jobs[job_id])
            assert await cluster.job(job_id) is seen[-1]

        await look()
        await cluster.bind(job_id, BINDING)
        await cluster.release(job_id)
        await look()
        await cluster.suspend(job_id)
        await look()
        await cluster.resume(job_id)
        await look()
        await cluster.requeue(job_id)
        await look()
        await asyncio.sleep(6)
        await look()
        cluster.jobs[job_id].held = False
        cluster.touch(job_id)
        await look()
        await cluster.requeue(job_id)  # (repeated: its answer got lost)
        await look()
        await cluster.bind(job_id, BINDING)
        await cluster.release(job_id)
        await asyncio.sleep(200)
        await look()
        return seen

    seen = run_virtual(main())
    assert [job.state for job in seen] == [
        JobState.PENDING,
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.RUNNING,
        JobState.COMPLETING,
        JobState.PENDING,
        JobState.PENDING,
        JobState.PENDING,
        JobState.ENDED,
    ]
    assert [job.held for job in seen] == [True, False, False, False, True, True, False, True, False]
    assert [job.restart_count for job in seen] == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_a_clock_of_its_own_is_read() -> None:
    async def main() -> float:
        nodes = {node.name: node for node in make_nodes(["n1"], 1)}
        cluster = SimulatedCluster(nodes, clock=lambda: 77.0)
        return (await cluster.observe()).time

    assert run_virtual(main()) == 77.0
