# SPDX-License-Identifier: GPL-2.0-or-later
"""`Snapshot.changed` is exact, and it does not matter how much the adapters say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from controller.api.live import LiveState
from controller.api.metrics import Metrics
from controller.daemon.publishing import Publisher
from controller.journal import JournalReader
from controller.loop.loop import Cycle
from controller.loop.pacing import PaceSettings
from controller.model import JobId
from controller.observe.nodes import offer
from tests.unit.loop.world import SLICE_SECONDS, World, run


def differing_jobs(before: Cycle, after: Cycle) -> set[JobId]:
    a, b = before.snapshot, after.snapshot
    return {
        job_id
        for job_id in a.jobs.keys() | b.jobs.keys()
        if a.jobs.get(job_id) != b.jobs.get(job_id)
        or (job_id in b.jobs and a.usage.get(job_id) != b.usage.get(job_id))
        or a.profiles.get(job_id) != b.profiles.get(job_id)
    }


def differing_nodes(before: Cycle, after: Cycle) -> set[str]:
    a, b = before.snapshot.nodes, after.snapshot.nodes
    return {name for name in a.keys() | b.keys() if offer(a.get(name)) != offer(b.get(name))}


async def eventful(world: World) -> None:
    """Jobs come, go, are suspended, cannot be suspended, are cancelled; nodes drain and fall silent."""
    jobs = [world.submit(work_seconds=40 + 7 * number) for number in range(5)]
    jobs.append(world.submit(2, work_seconds=60))
    jobs.append(world.submit(4, nodes=2, work_seconds=30))
    jobs.append(world.submit(work_seconds=40, suspend="requeue"))
    stubborn = world.submit(work_seconds=80)
    world.nodes.stubborn.add(stubborn)
    world.start()
    await asyncio.sleep(2.3 * SLICE_SECONDS)
    world.cluster.cancel(jobs[0])
    world.cluster.set_node("n2", up=False, state="DRAINED", reason="fan")
    await asyncio.sleep(1.2 * SLICE_SECONDS)
    world.nodes.unreachable.add("n1")
    jobs.append(world.submit(work_seconds=20))
    await asyncio.sleep(0.7 * SLICE_SECONDS)
    world.nodes.unreachable.clear()
    world.cluster.set_node("n2", up=True, state="IDLE", reason="")
    world.nodes.stubborn.clear()
    await world.until_ended([*jobs, stubborn], 900)
    await asyncio.sleep(5)
    await world.stop()
    world.check()


@pytest.mark.parametrize("deltas", [False, True])
def test_what_is_said_to_have_changed_has_and_all_else_has_not(tmp_path: Path, deltas: bool) -> None:
    async def scenario() -> None:
        world = World(
            tmp_path, nodes=2, gpus=2, deltas=deltas, step_deadline_seconds=5, retry_after_seconds=9
        )
        await eventful(world)
        partial = 0
        for before, after in pairwise(world.cycles):
            changed = after.snapshot.changed
            if changed.everything:
                continue
            partial += 1
            differing = differing_jobs(before, after)
            assert differing <= changed.jobs, differing - changed.jobs
            assert changed.jobs <= differing | before.plan.targets.keys()
            assert changed.nodes == differing_nodes(before, after)
        assert partial > 50 > len(world.cycles) - partial

    run(scenario)


def test_full_answers_deltas_and_plans_made_anew_lead_to_the_same_events(tmp_path: Path) -> None:
    events = []

    async def scenario(name: str, deltas: bool, resync_seconds: float) -> None:
        folder = tmp_path / name
        folder.mkdir()
        world = World(folder, nodes=2, gpus=2, deltas=deltas, step_deadline_seconds=5, retry_after_seconds=9)
        world.pace = PaceSettings(interval_seconds=1.0, resync_seconds=resync_seconds)
        await eventful(world)
        reader = JournalReader(world.journal_path)
        jobs = sorted(world.cluster.jobs)
        events.append(
            {
                job: (
                    [(d.time, d.action, d.gpus, d.reason) for d in reader.decisions(job)],
                    [(s.start, s.end, s.gpus) for s in reader.slices(job)],
                    world.cluster.jobs[job].end_time,
                )
                for job in jobs
            }
        )

    run(lambda: scenario("full", False, 1e9))
    run(lambda: scenario("deltas", True, 1e9))
    run(lambda: scenario("anew", False, 0.0))
    run(lambda: scenario("deltas-anew", True, 0.0))
    assert len(events[0]) == 10 and any(slices for _, slices, _ in events[0].values())
    assert events[0] == events[1] == events[2] == events[3]


def test_what_is_published_stays_as_it_was(tmp_path: Path) -> None:
    """The loop's snapshots follow what it learns; clients read theirs in threads of their own."""
    live = LiveState()
    publisher = Publisher(live, Metrics(live, Path("/nowhere")))

    async def scenario() -> None:
        world = World(tmp_path)
        first = world.submit()
        controller = world.start()
        await asyncio.sleep(SLICE_SECONDS)
        publisher.completed(replace(world.cycles[-1], snapshot=controller.observer.snapshot()))
        published = live.latest
        assert published is not None
        world.submit()
        await asyncio.sleep(SLICE_SECONDS)
        assert len(controller.observer.jobs) == 2
        assert set(published.cycle.snapshot.jobs) == set(published.cycle.snapshot.usage) == {first}
        await world.stop()

    run(scenario)
