# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of the journal never becomes of the jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.act.actions import Suspend
from controller.cluster.port import JobState
from controller.journal import JournalReader
from controller.journal.verify import verify
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.world import World


def test_jobs_take_turns_and_end_on_a_full_disk(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        jobs = [world.submit(work_seconds=60) for _ in range(3)]
        controller = world.start()
        await asyncio.sleep(5)
        assert world._journal is not None
        connection = world._journal.file.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for number in range(100):
            world._journal.record_event(0.0, None, None, "pad", f"{number} " + "x" * 1900)
        await world.until_ended(jobs, 400)
        (trouble,) = [text for text in controller.conditions.sentences if "journal" in text]
        assert "free space" in trouble and "the cluster is led on" in trouble
        suspends = [
            action for cycle in world.cycles for action in cycle.actions if isinstance(action, Suspend)
        ]
        assert len(suspends) >= 6
        connection.execute("PRAGMA max_page_count = 100000")
        await asyncio.sleep(3)
        assert controller.conditions.sentences == ()
        await world.stop()

    run_virtual(scenario())
    world.check()
    rows = JournalReader(world.journal_path).jobs()
    assert all(row.run_seconds >= 59 and row.record.state == "COMPLETED" for row in rows), rows
    assert verify(world.journal_path).problems == ()


def test_a_controller_killed_on_a_full_disk_leaves_no_job_suspended(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        jobs = [world.submit(work_seconds=60) for _ in range(2)]
        world.start()
        await asyncio.sleep(5)
        assert world._journal is not None
        connection = world._journal.file.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        await asyncio.sleep(30)
        await world.kill()
        assert JobState.SUSPENDED in {world.state(job) for job in jobs}
        world.start()
        await world.until_ended(jobs, 200)
        await world.stop()

    run_virtual(scenario())
    world.check()
    assert verify(world.journal_path).problems == ()


def test_a_journal_lost_while_it_is_used_is_written_anew_from_what_is_known(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        jobs = [world.submit(work_seconds=60) for _ in range(2)]
        world.start()
        await asyncio.sleep(65)
        world.journal_path.unlink()
        await asyncio.sleep(5)
        now = asyncio.get_running_loop().time()
        rows = {row.record.id: row for row in JournalReader(world.journal_path).jobs(now=now)}
        assert set(rows) == set(jobs), "jobs that have not changed are written, too"
        assert 50 < sum(row.run_seconds for row in rows.values()) < 70, "what they used is carried over"
        assert any(row.on_gpus for row in rows.values())
        await world.until_ended(jobs, 200)
        await world.stop()

    run_virtual(scenario())
    world.check()
    reader = JournalReader(world.journal_path)
    assert ["was removed" in event.message for event in reader.events() if event.kind == "journal"] == [True]
    assert all(59 <= row.run_seconds <= 75 for row in reader.jobs()), reader.jobs()
    assert verify(world.journal_path).problems == ()


def test_jobs_that_slurm_has_forgotten_while_no_controller_ran_have_ended(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=1)

    async def scenario() -> None:
        gone, living = world.submit(work_seconds=1e9), world.submit(work_seconds=1e9)
        world.start()
        await asyncio.sleep(5)
        await world.kill()
        del world.cluster.jobs[gone]
        world.start()
        await asyncio.sleep(5)
        rows = {row.record.id: row.record for row in JournalReader(world.journal_path).jobs()}
        assert rows[gone].state == "UNKNOWN" and rows[gone].end_time is not None
        assert rows[living].state != "UNKNOWN" and rows[living].end_time is None
        await world.stop()

    run_virtual(scenario())
    assert verify(world.journal_path).problems == ()
