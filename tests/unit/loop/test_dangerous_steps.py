# SPDX-License-Identifier: GPL-2.0-or-later
"""The order of steps that keeps two jobs off one GPU, and one job's memory from being another's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock, MagicMock

import pytest

from controller.act.actions import Place, Requeue, Resize, Resume, Suspend
from controller.act.recorder import Outcome
from controller.cluster.port import ClusterJob, JobState
from controller.cluster.records import slurm_job
from controller.errors import ClusterRefused, NodeError, NodeUnreachable
from controller.journal import MemoryJournal
from controller.model import Gpu, GpuId, JobId, Node, Phase, Placement, Profile, Snapshot
from controller.nodes.protocol import Offload, Pause
from controller.observe.identities import Identities
from tests.unit.cluster.factories import job_record
from tests.unit.loop.test_executor import A0, ONE, TWO, make_executor, one_job
from tests.unit.loop.test_failed_operations import carry_out

A1 = frozenset({GpuId("n1", 1)})
GIB = 1 << 30
ON, OFF = Placement(A0, A0), Placement(frozenset(), A0)


def agents() -> AsyncMock:
    """Nodes on which everything works."""
    nodes = AsyncMock()
    nodes.pause.return_value = Pause(target_step=1, all_blocked=True)
    nodes.offload.return_value = Offload(0, 0.0)
    return nodes


async def test_gpus_are_free_only_after_the_processes_of_the_suspended_job_were_seen_to_have_stopped() -> (
    None
):
    cluster, nodes, holders = AsyncMock(), agents(), list[set[JobId]]()
    executor = make_executor(cluster, nodes, MagicMock())
    nodes.stop.side_effect = lambda *_, **__: holders.append(executor.context.ledger.holders(A0))
    await carry_out(executor, Suspend(ONE, "its turn is over"), Phase.RUNNING, ON)
    assert holders == [{ONE}]
    assert executor.context.ledger.holders(A0) == set()


async def test_a_job_whose_resume_failed_in_the_driver_may_have_memory_on_its_gpus_and_keeps_them() -> None:
    cluster, nodes = AsyncMock(), agents()
    nodes.resume.side_effect = NodeError("n1", "driver", "restore failed: out of memory")
    executor = make_executor(cluster, nodes, MagicMock())
    await carry_out(executor, Resume(ONE, "its turn", A0), Phase.SUSPENDED, OFF)
    assert cluster.suspend.await_args_list == []
    assert executor.context.ledger.holders(A0) == {ONE}


@pytest.mark.parametrize("kind", ["unreachable", "internal", "gpu_busy"])
async def test_gpus_that_were_opened_for_a_resume_that_failed_are_closed_again(kind: str) -> None:
    cluster, nodes = AsyncMock(), agents()
    nodes.open.side_effect = (
        NodeUnreachable("n1", "gone") if kind == "unreachable" else NodeError("n1", kind, "")
    )
    executor = make_executor(cluster, nodes, MagicMock())
    await carry_out(executor, Resume(ONE, "its turn", A0), Phase.SUSPENDED, OFF)
    assert nodes.stop.await_count == 1 and not cluster.resume.await_args_list


@pytest.mark.parametrize("last", [JobState.PENDING, JobState.ENDED])
async def test_a_requeued_job_keeps_its_gpus_until_slurm_has_it_in_the_queue_again(last: JobState) -> None:
    states, holders = [JobState.RUNNING, JobState.COMPLETING, last], list[set[JobId]]()
    cluster, recorder = AsyncMock(), MagicMock()
    executor = make_executor(cluster, agents(), recorder)

    async def job(_job_id: JobId) -> MagicMock:
        holders.append(executor.context.ledger.holders(A0))
        return MagicMock(state=states[min(len(holders), len(states)) - 1])

    cluster.job.side_effect = job
    await carry_out(executor, Requeue(ONE, "makes room"), Phase.RUNNING, ON)
    assert holders == [{ONE}] * 3
    outcome = Outcome.DONE if last is JobState.PENDING else Outcome.JOB_ENDED
    assert recorder.operation_ends.call_args.args[1] is outcome


async def test_a_start_that_slurm_refuses_is_taken_back() -> None:
    """Released and bound it would start later, where nobody expects it."""
    cluster = AsyncMock()
    executor = make_executor(cluster, agents(), MagicMock())
    cluster.job.return_value = MagicMock(state=JobState.PENDING, user_hold=False, reason="AssocGrpGRES")
    cluster.release.side_effect = ClusterRefused("not now")
    await carry_out(executor, Place(ONE, "free GPU", A0, A0), Phase.QUEUED)
    cluster.hold.assert_awaited_once_with(ONE)
    cluster.unbind.assert_awaited_once_with(ONE)


async def test_a_job_that_grows_in_place_waits_until_the_other_has_left_the_new_gpus() -> None:
    nodes = agents()
    executor = make_executor(AsyncMock(), nodes, MagicMock())
    snapshot = one_job(Phase.RUNNING, Placement(A0, A0 | A1))
    executor.sync(snapshot)
    ledger = executor.context.ledger
    await ledger.claim(TWO, A1)
    ledger.leaving(TWO)
    executor.apply([Resize(ONE, "grows", A0 | A1)], snapshot)
    for _ in range(100):
        await asyncio.sleep(0)
    assert nodes.mock_calls == [], "the job works on with what it has"
    ledger.release(TWO)
    assert await executor.drain(60.0)
    assert nodes.resume.await_count == 1
    assert ledger.holders(A1) == {ONE}


async def test_a_job_is_not_resumed_beside_memory_that_leaves_it_too_little() -> None:
    cluster, nodes = AsyncMock(), agents()
    executor = make_executor(cluster, nodes, MagicMock())
    gpu = Gpu(id=GpuId("n1", 0), model="a100", memory_bytes=40 * GIB, left_by=((TWO, 10 * GIB),))
    before = one_job(Phase.SUSPENDED, OFF)
    snapshot = Snapshot(
        time=0.0,
        nodes={"n1": Node(name="n1", gpus=(gpu,))},
        jobs=before.jobs,
        profiles={ONE: Profile(peak_memory_bytes=35 * GIB)},
    )
    executor.sync(snapshot)
    executor.apply([Resume(ONE, "its turn", A0)], snapshot)
    assert await executor.drain(60.0)
    assert cluster.mock_calls == [] and nodes.mock_calls == []
    assert executor.context.ledger.holders(A0) == set()


SEEN = replace(slurm_job(job_record(id=1, submit_time=100), now=5000.0), user="alice", uid=1000)


@pytest.mark.parametrize(
    ("now", "is_another"),
    [
        (SEEN, False),
        (replace(SEEN, submit_time=100.5), False),
        (replace(SEEN, submit_time=160.0), True),
        (replace(SEEN, user="bob"), True),
        (replace(SEEN, submit_time=160.0, restart_count=1), False),
        (replace(SEEN, submit_time=160.0, user="bob", restart_count=1), True),
    ],
)
def test_a_job_of_the_same_user_with_the_number_of_an_earlier_one_is_another_job(
    now: ClusterJob, is_another: bool
) -> None:
    """It would go on with the other's memory: its time on GPUs, its failed suspends, its promises."""
    reused: list[JobId] = []
    identities = Identities(MemoryJournal(), lambda job_id, _why: reused.append(job_id))
    identities.check([SEEN])
    assert bool(identities.check([now])) is is_another
    assert bool(reused) is is_another
