# SPDX-License-Identifier: GPL-2.0-or-later
"""In rounds a job goes on with another GPU type by way of a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.simulated import SlurmCosts
from controller.journal.reader import JournalReader
from controller.model import JobId
from controller.nodes.simulated import NodeCosts
from controller.policies.mechanisms.rounds.settings import RoundSettings
from tests.unit.loop.world import World, run
from tests.unit.policies.presets import rounds
from tests.unit.policies.test_rounds import Fixed

TYPES = {"n1": "a-v100", "n2": "b-p100"}
HALVES = {job: dict.fromkeys(TYPES.values(), 0.5) for job in (1, 2)}
ROUND_SECONDS = 30.0


def rounds_world(
    folder: Path,
    *,
    deltas: bool,
    change_types: bool = True,
    fractions: Mapping[int, Mapping[str, float]] = HALVES,
) -> World:
    """One GPU of each type, and two jobs that are to have half of each."""
    settings = RoundSettings(round_seconds=ROUND_SECONDS, change_types=change_types)
    costs = NodeCosts(0.1, 0.05, 0.05, save_seconds=1.0)
    policy = rounds(Fixed(fractions), settings)
    slow = SlurmCosts(0.005, 3.0, 0.1)
    world = World(folder, nodes=2, gpus=1, policy=policy, deltas=deltas, node_costs=costs, slurm_costs=slow)
    for name, model in TYPES.items():
        node = world.cluster.nodes[name]
        world.cluster.nodes[name] = replace(node, gpus=tuple(replace(g, model=model) for g in node.gpus))
    return world


async def seconds_by_node(world: World, seconds: float) -> dict[JobId, dict[str, float]]:
    """For so long, where the jobs of Slurm are, second by second."""
    found: dict[JobId, dict[str, float]] = {}
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        for job_id, job in world.cluster.jobs.items():
            for name in job.nodes:
                mine = found.setdefault(job_id, {})
                mine[name] = mine.get(name, 0.0) + 1
    return found


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("way", ["store", "requeue"])
def test_jobs_have_their_part_of_each_type(tmp_path: Path, way: str, deltas: bool) -> None:
    async def scenario() -> None:
        world = rounds_world(tmp_path, deltas=deltas)
        options: dict[str, Any] = {} if way == "store" else {"suspend": "requeue"}
        jobs = [world.submit(**options) for _ in range(2)]
        world.nodes.storing |= set(jobs) if way == "store" else set()
        world.start()
        had = await seconds_by_node(world, 12 * ROUND_SECONDS)
        for job in jobs:
            assert set(had[job]) == set(TYPES)
            assert all(seconds > 4 * ROUND_SECONDS for seconds in had[job].values()), had
            actions = {d.action for d in JournalReader(world.journal_path).decisions(job)}
            assert actions == {"place", "migrate" if way == "store" else "requeue"}
            assert world.cluster.jobs[job].restart_count >= 4
            seen = [cycle.snapshot.jobs[job] for cycle in world.cycles if job in cycle.snapshot.jobs]
            bound = [each.starts_anywhere for each in seen if each.placement.allocation]
            assert all(bound[bound.index(True) :]), "also while its sessions start again"
        assert world.cycles[-1].plan.memory.common.get("rounds", {}).get("bound", 0) == 0
        await world.stop()
        world.check()

    run(scenario)


def test_a_job_whose_store_is_full_takes_turns_on_its_type(tmp_path: Path) -> None:
    """It is suspended as a job without a store, and keeps the others from no GPU."""

    async def scenario() -> None:
        thirds = {job: dict.fromkeys(TYPES.values(), 1 / 3) for job in (1, 2, 3)}
        world = rounds_world(tmp_path, deltas=False, fractions=thirds)
        jobs = [world.submit() for _ in range(3)]
        world.nodes.storing |= set(jobs)
        world.nodes.full.add(jobs[0])
        world.start()
        await asyncio.sleep(16 * ROUND_SECONDS)
        usage = world.cycles[-1].snapshot
        had = [usage.usage_of(job).seconds for job in jobs]
        assert min(had) > 3 * ROUND_SECONDS, had
        actions = [d.action for d in JournalReader(world.journal_path).decisions(jobs[0])]
        assert "suspend" in actions
        await world.stop()
        world.check()

    run(scenario)


@pytest.mark.parametrize("why", ["no checkpoint", "its user", "the site"])
def test_a_job_that_cannot_start_anywhere_keeps_its_type(tmp_path: Path, why: str) -> None:
    async def scenario() -> None:
        world = rounds_world(tmp_path, deltas=False, change_types=why != "the site")
        options: dict[str, Any] = {"migrate": False} if why == "its user" else {}
        jobs = [world.submit(**options) for _ in range(2)]
        world.nodes.storing |= set() if why == "no checkpoint" else set(jobs)
        world.start()
        had = await seconds_by_node(world, 6 * ROUND_SECONDS)
        assert sorted(name for job in jobs for name in had[job]) == ["n1", "n2"]
        assert all(world.cluster.jobs[job].restart_count == 0 for job in jobs)
        await world.stop()
        world.check()

    run(scenario)
