# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor where what it writes to fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from controller.actions import Place, Suspend
from controller.clock import SystemClock
from controller.errors import JournalError
from controller.executor import Executor, ExecutorSettings
from controller.ledger import ClaimFailed
from controller.memory import Memory
from controller.model import GpuId, Job, JobId, Node, Phase, Request, Snapshot

ONE, TWO = JobId(1), JobId(2)
A0 = frozenset({GpuId("n1", 0)})


async def test_a_suspend_that_cannot_be_written_down_is_not_waited_for() -> None:
    """The job was not asked to leave: who waits for its GPUs would wait for ever."""
    recorder: Any = MagicMock()
    recorder.operation_begins.side_effect = JournalError("cannot read the journal: disk I/O error")
    executor = Executor(MagicMock(), MagicMock(), SystemClock(), Memory(), recorder, ExecutorSettings())
    job = Job(ONE, "alice", Request(1), Phase.RUNNING, 0.0, binding=A0, running_on=A0)
    snapshot = Snapshot(0.0, {"n1": Node("n1", ())}, {ONE: job})
    executor.sync(snapshot)
    with pytest.raises(JournalError):
        executor.apply([Suspend(ONE, "its turn is over")], snapshot)
    with pytest.raises(ClaimFailed, match="still held by job 1"):
        await asyncio.wait_for(executor._ledger.claim(TWO, A0), 5.0)


async def test_an_abandoned_operation_takes_no_further_step_even_when_its_cancellation_was_swallowed() -> (
    None
):
    """The number is another user's job by now: nothing may be bound or released under it."""
    asked = asyncio.Event()

    async def answers_as_it_is_cancelled(*_: Any, **__: Any) -> None:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)

    cluster, nodes = AsyncMock(), MagicMock(prepare=answers_as_it_is_cancelled)
    executor = Executor(cluster, nodes, SystemClock(), Memory(), MagicMock(), ExecutorSettings())
    snapshot = Snapshot(0.0, {"n1": Node("n1", ())}, {ONE: Job(ONE, "alice", Request(1), Phase.QUEUED, 0.0)})
    executor.sync(snapshot)
    executor.apply([Place(ONE, A0, A0, "free GPU")], snapshot)
    await asyncio.wait_for(asked.wait(), 5.0)
    executor.abandon(ONE)
    assert await executor.drain(5.0)
    assert cluster.mock_calls == []
    await asyncio.wait_for(executor._ledger.claim(TWO, A0), 5.0)
