# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for the journal's lock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.daemon import leadership
from controller.daemon.leadership import wait_to_lead
from controller.errors import JournalError
from controller.journal.lock import JournalLock


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "POLL_SECONDS", 0.01)


def test_the_first_leads_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    lock = JournalLock(tmp_path / "j")
    assert asyncio.run(wait_to_lead(lock, asyncio.Event(), standby=False, waiting=told.append))
    assert lock.is_ours() and told == []


def test_the_second_says_so_once_and_leads_when_the_first_is_gone(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        first, second = JournalLock(tmp_path / "j"), JournalLock(tmp_path / "j")
        assert first.take()
        told: list[str] = []
        task = asyncio.create_task(wait_to_lead(second, asyncio.Event(), standby=True, waiting=told.append))
        await asyncio.sleep(0.1)
        assert not task.done() and not second.is_ours()
        first.release()
        assert await asyncio.wait_for(task, 60)
        assert second.is_ours()
        return told

    (message,) = asyncio.run(scenario())
    assert message.startswith("standby: the controller with pid ") and message.endswith(f"{tmp_path}/j")


def test_it_is_refused_where_the_site_wants_no_standby(tmp_path: Path) -> None:
    first = JournalLock(tmp_path / "j")
    assert first.take()
    with pytest.raises(JournalError, match=r"another controller \(pid \d+\) .* daemon.standby = true"):
        asyncio.run(wait_to_lead(JournalLock(tmp_path / "j"), asyncio.Event(), standby=False, waiting=print))


def test_a_standby_can_be_stopped(tmp_path: Path) -> None:
    async def scenario() -> bool:
        first, stop = JournalLock(tmp_path / "j"), asyncio.Event()
        assert first.take()
        task = asyncio.create_task(
            wait_to_lead(JournalLock(tmp_path / "j"), stop, standby=True, waiting=lambda _why: None)
        )
        await asyncio.sleep(0.05)
        stop.set()
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(scenario()) is False
