# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor where what it writes to fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from controller.act.actions import Place, Suspend
from controller.act.context import Context
from controller.act.executor import Executor
from controller.act.ledger import ClaimFailed
from controller.errors import JournalError
from controller.loop.clock import SystemClock
from controller.model import NOWHERE, GpuId, Job, JobId, Node, Phase, Placement, Request, Size, Snapshot
from controller.observe.memory import JobMemories
from controller.settings.schema import Settings

ONE, TWO = JobId(1), JobId(2)
A0 = frozenset({GpuId("n1", 0)})


def make_executor(cluster: Any, nodes: Any, recorder: Any) -> Executor:
    return Executor(Context(cluster, nodes, SystemClock(), JobMemories(), recorder, Settings()))


def one_job(phase: Phase, placement: Placement = NOWHERE) -> Snapshot:
    request = Request(size=Size.exactly(1))
    job = Job(id=ONE, user="alice", request=request, submit_time=0.0, phase=phase, placement=placement)
    return Snapshot(time=0.0, nodes={"n1": Node(name="n1", gpus=())}, jobs={ONE: job})


async def test_a_suspend_that_cannot_be_written_down_is_not_waited_for() -> None:
    """The job was not asked to leave: who waits for its GPUs would wait for ever."""
    recorder: Any = MagicMock()
    recorder.operation_begins.side_effect = JournalError("cannot read the journal: disk I/O error")
    executor = make_executor(MagicMock(), MagicMock(), recorder)
    snapshot = one_job(Phase.RUNNING, Placement(A0, A0))
    executor.sync(snapshot)
    with pytest.raises(JournalError):
        executor.apply([Suspend(ONE, "its turn is over")], snapshot)
    with pytest.raises(ClaimFailed, match="still held by job 1"):
        await asyncio.wait_for(executor.context.ledger.claim(TWO, A0), 5.0)


async def test_an_abandoned_operation_takes_no_further_step_even_when_its_cancellation_was_swallowed() -> (
    None
):
    """The id is another user's job by now: nothing may be bound or released under it."""
    asked = asyncio.Event()

    async def answers_as_it_is_cancelled(*_: Any, **__: Any) -> None:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)

    cluster, nodes = AsyncMock(), MagicMock(prepare=answers_as_it_is_cancelled)
    executor = make_executor(cluster, nodes, MagicMock())
    snapshot = one_job(Phase.QUEUED)
    executor.sync(snapshot)
    executor.apply([Place(ONE, "free GPU", A0, A0)], snapshot)
    await asyncio.wait_for(asked.wait(), 5.0)
    executor.abandon(ONE)
    assert await executor.drain(5.0)
    assert cluster.mock_calls == []
    await asyncio.wait_for(executor.context.ledger.claim(TWO, A0), 5.0)
