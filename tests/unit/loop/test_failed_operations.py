# SPDX-License-Identifier: GPL-2.0-or-later
"""Operations that fail half-way: nothing is undone on GPUs that another job may have by then."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, MagicMock, call

from controller.act.actions import Action, Place, Resume, Suspend
from controller.act.executor import Executor
from controller.errors import ClusterUnavailable, NodeError
from controller.model import NOWHERE, GpuId, JobId, Phase, Placement
from controller.nodes.protocol import Pause
from tests.unit.loop.test_executor import A0, ONE, make_executor, one_job

BOTH = A0 | {GpuId("n2", 0)}
"""Of a gang over two nodes."""


async def carry_out(executor: Executor, action: Action, phase: Phase, placement: Placement = NOWHERE) -> None:
    snapshot = one_job(phase, placement)
    executor.sync(snapshot)
    executor.apply([action], snapshot)
    assert await executor.drain(60.0)


async def test_a_start_that_fails_is_taken_back_before_its_gpus_are_another_jobs() -> None:
    """Slurm may have heard of the release, and start it onto GPUs that another job has."""
    cluster, holders = AsyncMock(), list[set[JobId]]()
    executor = make_executor(cluster, AsyncMock(), MagicMock())
    cluster.release.side_effect = ClusterUnavailable("no answer")
    cluster.hold.side_effect = lambda _job_id: holders.append(executor.context.ledger.holders(A0))
    await carry_out(executor, Place(ONE, "free GPU", A0, A0), Phase.QUEUED)
    assert holders == [{ONE}]
    assert cluster.unbind.await_args_list == [call(ONE)]
    assert executor.context.ledger.holders(A0) == set()


async def test_a_job_off_its_gpus_is_not_put_back_where_its_suspend_fails() -> None:
    nodes = AsyncMock()
    nodes.stop.side_effect = NodeError("n1", "deadline", "process 5 is neither stopped nor frozen")
    executor, off = make_executor(AsyncMock(), nodes, MagicMock()), Placement(frozenset(), A0)
    await carry_out(executor, Suspend(ONE, "completes an incomplete suspend"), Phase.YIELDED, off)
    nodes.stop.assert_awaited()
    nodes.resume.assert_not_awaited()


async def test_a_gang_that_is_back_on_one_of_its_nodes_is_not_suspended_in_slurm() -> None:
    """It has memory on GPUs there, and keeps them."""

    async def resume(node: str, *_: Any, **__: Any) -> None:
        if node == "n1":
            raise NodeError(node, "gpu_busy", "process 5 of no job holds 1 MiB on GPU 0")

    cluster, nodes = AsyncMock(), AsyncMock()
    nodes.resume.side_effect = resume
    executor, off = make_executor(cluster, nodes, MagicMock()), Placement(frozenset(), BOTH)
    await carry_out(executor, Resume(ONE, "its turn", BOTH), Phase.SUSPENDED, off)
    assert cluster.suspend.await_args_list == []
    assert executor.context.ledger.holders({GpuId("n2", 0)}) == {ONE}


async def test_a_job_is_put_back_when_no_node_is_taking_it_off_its_gpus_any_more() -> None:
    """One that is slower would take it off after that, and nobody would wait for it."""
    done: list[str] = []

    async def offload(node: str, *_: Any, **__: Any) -> None:
        if node == "n1":
            raise NodeError(node, "driver", "its GPU has fallen off the bus")
        for _turn in range(1000):
            await asyncio.sleep(0)
        done.append("n2 is off")

    async def resume(node: str, *_: Any, **__: Any) -> None:
        done.append(f"{node} is back")

    nodes = AsyncMock()
    nodes.pause.return_value = Pause(target_step=1, all_blocked=True)
    nodes.offload.side_effect, nodes.resume.side_effect = offload, resume
    executor = make_executor(AsyncMock(), nodes, MagicMock())
    await carry_out(executor, Suspend(ONE, "its turn is over"), Phase.RUNNING, Placement(BOTH, BOTH))
    assert done == ["n2 is off", "n1 is back", "n2 is back"]
