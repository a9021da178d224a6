# SPDX-License-Identifier: GPL-2.0-or-later
"""The executor where what it writes to fails."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from controller.actions import Suspend
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
