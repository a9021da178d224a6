# SPDX-License-Identifier: GPL-2.0-or-later
"""A slurmctld that was killed has forgotten its last suspends: RUNNING for Slurm, frozen on the node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.port import JobState
from controller.errors import NodeError
from controller.journal import JournalReader
from controller.model import JobId
from tests.unit.loop.world import SLICE_SECONDS, World, run


def test_a_frozen_job_that_runs_for_slurm_is_thawed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        jobs = [world.submit(work_seconds=3 * SLICE_SECONDS) for _ in range(2)]
        frozen: set[JobId] = set()
        thawed: list[JobId] = []
        suspend, resume = world.cluster.suspend, world.nodes.resume

        async def suspend_thaws(job_id: JobId) -> None:
            if job_id in frozen:
                thawed.append(job_id)
            frozen.discard(job_id)
            await suspend(job_id)

        async def resume_needs_thawed(node: str, job_id: JobId, **options: Any) -> None:
            if job_id in frozen:
                raise NodeError(node, "halted", f"process 1 is frozen, and so are all of job {job_id}")
            await resume(node, job_id, **options)

        monkeypatch.setattr(world.cluster, "suspend", suspend_thaws)
        monkeypatch.setattr(world.nodes, "resume", resume_needs_thawed)
        world.start()
        await asyncio.sleep(SLICE_SECONDS * 1.5)
        (forgotten,) = [job for job in jobs if world.state(job) is JobState.SUSPENDED]
        await world.kill()
        world.cluster.jobs[forgotten].state = JobState.RUNNING
        world.cluster.jobs[forgotten].working_since = None
        frozen.add(forgotten)
        other = next(job for job in jobs if job != forgotten)
        world.cluster.cancel(other)
        world.start()
        await asyncio.sleep(SLICE_SECONDS)
        assert thawed == [forgotten]
        assert world.running() == {int(forgotten)}
        await world.until_ended(jobs, 100)
        await world.stop()
        events = JournalReader(world.journal_path).events(forgotten)
        assert any("once more" in event.message for event in events)
        world.check()

    run(scenario)
