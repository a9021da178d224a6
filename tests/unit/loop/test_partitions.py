# SPDX-License-Identifier: GPL-2.0-or-later
"""Partitions with different nodes: a job runs, and takes GPUs from others, only where it can."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.cluster.port import JobState
from controller.model import Reason, reason_of
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.world import SLICE_SECONDS, World


def divided(tmp_path: Path, **partitions: tuple[str, ...]) -> World:
    """Two nodes with one GPU each, in these partitions."""
    world = World(tmp_path, nodes=len(partitions), gpus=1)
    for name, its in partitions.items():
        world.cluster.set_node(name, partitions=dict.fromkeys(its, ""))
    return world


def test_jobs_stay_on_the_nodes_of_their_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = divided(tmp_path, n1=("pa",), n2=("pb",))
        jobs = [world.submit(partition="pa") for _ in range(3)]
        world.start()
        await asyncio.sleep(6 * SLICE_SECONDS)
        assert {node for job in jobs for node in world.cluster.jobs[job].nodes} == {"n1"}
        other = world.submit(partition="pb", user="bob")
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert world.cluster.jobs[other].nodes == ("n2",) and int(other) in world.running()
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_job_suspends_no_other_where_it_cannot_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = divided(tmp_path, n1=("pa",), n2=("pb",))
        stays = world.submit(partition="pa")
        world.start()
        await asyncio.sleep(2.0)
        several = [world.submit(partition="pb", user="bob") for _ in range(3)]
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert world.state(stays) is JobState.RUNNING
        assert {node for job in several for node in world.cluster.jobs[job].nodes} == {"n2"}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_job_of_several_partitions_may_use_the_nodes_of_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = divided(tmp_path, n1=("pa",), n2=("pb",), n3=("pc",))
        jobs = [world.submit(partition="pa,pb", nodes=nodes) for nodes in (1, None)]
        world.start()
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert {node for job in jobs for node in world.cluster.jobs[job].nodes} == {"n1", "n2"}
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_a_gang_on_several_nodes_is_in_one_partition(tmp_path: Path) -> None:
    """Slurm spreads no job over two."""

    async def scenario() -> None:
        world = divided(tmp_path, n1=("pa",), n2=("pb",), n3=("pb",))
        world.start()
        gang = world.submit(gpus=2, nodes=2, partition="pb,pa")
        never = world.submit(gpus=2, nodes=2, partition="pa,pb")
        await asyncio.sleep(2 * SLICE_SECONDS)
        assert set(world.cluster.jobs[gang].nodes) == {"n2", "n3"}
        assert world.state(never) is JobState.PENDING
        await world.stop()
        world.check()

    run_virtual(scenario())


def test_explain_names_the_partition_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, nodes=1, gpus=1)
        why = "partition old has OverSubscribe=EXCLUSIVE"
        world.cluster.set_node("n1", partitions={"gpu": "", "old": why})
        elsewhere, refused = world.submit(partition="cpu"), world.submit(partition="old")
        fine = world.submit()
        controller = world.start()
        problems = controller.conditions
        await asyncio.sleep(5.0)
        assert controller.reasons[elsewhere] == "no node can take its GPU: not in partition cpu"
        assert controller.reasons[refused] == f"no node can take its GPU: {why}"
        assert {reason_of(controller.reasons[job]) for job in (elsewhere, refused)} == {Reason.NO_NODE_FITS}
        assert world.running() == {int(fine)}
        assert list(problems.sentences) == [f"{why}: its Gandiva jobs stay held"]
        world.cluster.cancel(refused)
        await asyncio.sleep(5.0)
        assert not problems.sentences
        await world.stop()

    run_virtual(scenario())
