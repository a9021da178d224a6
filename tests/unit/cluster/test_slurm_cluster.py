# SPDX-License-Identifier: GPL-2.0-or-later
"""The port's rules, on a transport that does as it is told."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controller.cluster.adapter import MAX_WAITING_TASKS, REVOKED_SECONDS, SlurmCluster
from controller.cluster.command import CommandTransport, Load
from controller.cluster.partitions import Partition
from controller.cluster.port import ClusterPort, JobState
from controller.cluster.raw import JobRecord
from controller.cluster.request import Asked, read_asked
from controller.cluster.reserving import Reservation
from controller.cluster.states import REQUEUED_HELD
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuId, JobId
from controller.simulation.virtual_time import run_virtual
from tests.unit.cluster.factories import PARTITIONS, REQUEST, job_record, node_record, running_record

JOB = JobId(7)
N1 = frozenset({GpuId("n1", 0), GpuId("n1", 1)})
BOTH = frozenset({GpuId("n1", 0), GpuId("n2", 0)})


class FakeTransport(CommandTransport):
    """Answers with the records it was given, and writes down what it is asked to change."""

    def __init__(self, *records: JobRecord) -> None:
        self.records = {record.id: record for record in records}
        self.calls: list[tuple[Any, ...]] = []
        self.times: list[float] = []
        self.failures: dict[str, Exception] = {}
        self.later: list[JobRecord] = []
        """Records that replace the first one, one at each further reading."""
        self.hangs = False
        self.calls_for_partitions = 0

    async def load(self) -> Load:
        await self._maybe_hang()
        nodes = (node_record("n1"), node_record("n2"))
        return Load(tuple(self.records.values()), nodes, {})

    async def partitions(self) -> tuple[Partition, ...]:
        self.calls_for_partitions += 1
        return PARTITIONS

    async def job(self, job_id: JobId) -> JobRecord:
        await self._maybe_hang()
        if job_id not in self.records:
            raise UnknownJob(f"job {job_id}")
        record = self.records[job_id]
        if self.later:
            self.records[job_id] = self.later.pop(0)
        return record

    async def bind(self, job_id: JobId, gres: Sequence[str], nodes: Sequence[str], resize: bool) -> None:
        await self._did("bind", job_id, gres, nodes, resize)

    async def unbind(self, job_id: JobId, asked: Asked, *, begin_now: bool) -> None:
        await self._did("unbind", job_id, asked, *(["begin now"] if begin_now else []))

    async def release(self, job_id: JobId) -> None:
        await self._did("release", job_id)

    async def hold(self, job_id: JobId) -> None:
        await self._did("hold", job_id)

    async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
        await self._did("split", array_id, tuple(tasks))

    async def suspend(self, job_id: JobId) -> None:
        await self._did("suspend", job_id)

    async def resume(self, job_id: JobId) -> None:
        await self._did("resume", job_id)

    async def requeue_hold(self, job_id: JobId) -> None:
        await self._did("requeue_hold", job_id)

    async def end(self, job_id: JobId, reason: str) -> None:
        await self._did("end", job_id, reason)

    async def reservations(self) -> tuple[Reservation, ...]:
        return ()

    async def close(self) -> None:
        await self._did("close")

    async def _did(self, *call: Any) -> None:
        await self._maybe_hang()
        self.calls.append(call)
        self.times.append(asyncio.get_running_loop().time())
        if call[0] in self.failures:
            raise self.failures[call[0]]

    async def _maybe_hang(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()


def port(transport: FakeTransport, deadline_seconds: float = 60.0) -> ClusterPort:
    return SlurmCluster(transport, deadline_seconds=deadline_seconds)


async def test_binding_within_one_node() -> None:
    transport = FakeTransport(job_record())
    await port(transport).bind(JOB, N1)
    assert transport.calls == [("bind", JOB, ("shard:a100_0", "shard:a100_1"), ["n1"], False)]


@pytest.mark.parametrize(
    "changes",
    [
        {"min_nodes": 1, "max_nodes": 1},
        {"min_nodes": 1, "max_nodes": 2},
        {"min_nodes": 2, "max_nodes": 0},
        {"min_nodes": 2, "max_nodes": 2, "gres": ""},
    ],
)
async def test_binding_fixes_the_number_of_nodes_where_it_must(changes: dict[str, Any]) -> None:
    transport = FakeTransport(job_record(**changes))
    await port(transport).bind(JOB, BOTH)
    assert transport.calls == [("bind", JOB, ("shard:a100_0",), ["n1", "n2"], True)]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept. Nothing is."""
    made: list[float] = []

    async def no_sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    return made


async def test_binding_waits_for_the_end_of_the_last_run(slept: list[float]) -> None:
    transport = FakeTransport(job_record(state=("PENDING", "COMPLETING")))
    transport.later = [job_record(state=("PENDING", "COMPLETING")), job_record(restarts=1)]
    await port(transport).bind(JOB, N1)
    assert [call[0] for call in transport.calls] == ["bind"]
    # And until a new credential cannot be taken for the one that its end revoked.
    assert slept[-1] == pytest.approx(REVOKED_SECONDS, abs=0.1)


@pytest.mark.parametrize(("restarts", "ago", "waits"), [(1, 0, True), (1, 10, False), (0, 0, False)])
async def test_a_job_is_not_bound_in_the_moment_of_its_requeue(
    slept: list[float], restarts: int, ago: int, waits: bool
) -> None:
    submitted = int(time.time()) - ago
    transport = FakeTransport(job_record(restarts=restarts, submit_time=submitted))
    await port(transport).bind(JOB, N1)
    assert [call[0] for call in transport.calls] == ["bind"]
    assert bool(slept) is waits
    assert all(REVOKED_SECONDS - 1.5 < seconds <= REVOKED_SECONDS for seconds in slept)


async def test_binding_gives_up_on_a_last_run_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 30.0).__next__, time=time.time)
    monkeypatch.setattr("controller.cluster.adapter.time", clock)
    transport = FakeTransport(job_record(state=("PENDING", "COMPLETING")))
    with pytest.raises(ClusterUnavailable, match="last run"):
        await port(transport).bind(JOB, N1)
    assert transport.calls == []


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (running_record("gres/shard:a100_0:1", "n1"), "RUNNING, not pending"),
        (job_record(priority=5), "not held"),
        (job_record(array_job_id=7, array_tasks="0-3"), "array tasks 0-3"),
        (job_record(state=("CANCELLED",)), "CANCELLED, not pending"),
    ],
)
async def test_jobs_that_cannot_be_bound(record: JobRecord, problem: str) -> None:
    transport = FakeTransport(record)
    with pytest.raises(ClusterRefused, match=problem):
        await port(transport).bind(JOB, N1)
    assert transport.calls == []


async def test_bindings_that_cannot_be() -> None:
    transport = FakeTransport(job_record())
    for binding in (frozenset(), N1 | BOTH):
        with pytest.raises(ValueError):
            await port(transport).bind(JOB, binding)
    assert transport.calls == []


async def test_a_node_that_was_taken_out_of_slurm_meanwhile_is_no_bug() -> None:
    transport = FakeTransport(job_record())
    with pytest.raises(ClusterRefused, match="n9 is no node with GPUs of ours"):
        await port(transport).bind(JOB, frozenset({GpuId("n9", 0)}))
    assert transport.calls == []


async def test_unbinding_restores_what_the_user_asked_for() -> None:
    request = REQUEST.replace('"site"', '"nodelist":"n[1-2]","site"')
    transport = FakeTransport(job_record(gres="gres/shard:a100_0:1", request=request))
    await port(transport).unbind(JOB)
    assert transport.calls == [("unbind", JOB, read_asked(request))]


async def test_unbinding_gpus_per_job() -> None:
    request = 'gandiva:{"v":1,"gpus":4,"gpus_per_node":null,"nodes":null}'
    transport = FakeTransport(job_record(request=request))
    await port(transport).unbind(JOB)
    assert transport.calls == [("unbind", JOB, read_asked(request))]


async def test_unbinding_needs_only_what_it_restores() -> None:
    """Also of a request of another release, or with node names that make no sense: such a job stays held."""
    request = 'gandiva:{"v":9,"gpus":4,"nodelist":"n[1-","news":true}'
    transport = FakeTransport(job_record(request=request))
    await port(transport).unbind(JOB)
    assert transport.calls == [("unbind", JOB, Asked(gpus=4, nodelist="n[1-"))]


@pytest.mark.parametrize(("seconds", "words"), [(30, ["begin now"]), (-30, []), (3600, [])])
async def test_the_begin_that_a_release_by_its_owner_has_put_off_is_now_again(
    seconds: int, words: list[str]
) -> None:
    begin = round(time.time()) + seconds
    transport = FakeTransport(job_record(begin_time=begin))
    await port(transport).unbind(JOB)
    assert transport.calls == [("unbind", JOB, read_asked(REQUEST), *words)]


@pytest.mark.parametrize("request_", ["gandiva:", "gandiva:{}", 'gandiva:{"gpus":"many"}'])
async def test_unbinding_without_a_request_changes_nothing(request_: str) -> None:
    transport = FakeTransport(job_record(request=request_))
    with pytest.raises(ClusterRefused, match="admin_comment"):
        await port(transport).unbind(JOB)
    assert transport.calls == []


async def test_only_pending_jobs_are_held() -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1"))
    with pytest.raises(ClusterRefused, match="RUNNING"):
        await port(transport).hold(JOB)
    assert transport.calls == []


async def test_a_job_that_starts_while_it_is_held_is_reported() -> None:
    transport = FakeTransport(job_record(priority=5))
    transport.later = [running_record("gres/shard:a100_0:1", "n1")]
    with pytest.raises(ClusterRefused, match="RUNNING"):
        await port(transport).hold(JOB)
    assert transport.calls == [("hold", JOB)]


@pytest.mark.parametrize(
    "record",
    [
        running_record("gres/shard:a100_0:1", "n1"),
        running_record("gres/shard:a100_0:1", "n1", state=("SUSPENDED",), priority=0),
        running_record("gres/shard:a100_0:1", "n1", state=("RUNNING", "CONFIGURING")),
    ],
)
async def test_allocated_jobs_are_requeued(record: JobRecord) -> None:
    transport = FakeTransport(record)
    await port(transport).requeue(JOB)
    assert transport.calls == [("requeue_hold", JOB)]


@pytest.mark.parametrize(
    "record",
    [
        job_record(restarts=1),
        job_record(state=("PENDING", "COMPLETING"), reason=REQUEUED_HELD, restarts=1),
        job_record(state=("COMPLETING",), reason=REQUEUED_HELD, restarts=1),
    ],
)
async def test_a_requeue_may_be_repeated(record: JobRecord) -> None:
    transport = FakeTransport(record)
    await port(transport).requeue(JOB)
    assert transport.calls == []


async def test_a_pending_job_that_is_not_held_is_held_instead() -> None:
    transport = FakeTransport(job_record(priority=5))
    await port(transport).requeue(JOB)
    assert transport.calls == [("hold", JOB)]


@pytest.mark.parametrize("state", [("COMPLETED",), ("COMPLETED", "COMPLETING"), ("FAILED",)])
async def test_what_is_over_is_not_run_again(state: tuple[str, ...]) -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1", state=state))
    with pytest.raises(ClusterRefused, match="run it again"):
        await port(transport).requeue(JOB)
    assert transport.calls == []


@pytest.mark.parametrize("state", [("COMPLETED",), ("COMPLETED", "COMPLETING"), ("FAILED",)])
async def test_what_is_over_is_not_cancelled(state: tuple[str, ...]) -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1", state=state))
    await port(transport).end(JOB, "why")
    assert transport.calls == []


async def test_a_call_that_undoes_another_one_does_not_overtake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.cluster.adapter.SETTLE_SECONDS", 0.05)
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1"))
    cluster = port(transport)
    for call in (cluster.suspend, cluster.resume, cluster.requeue):
        await call(JOB)
    first, second, third = transport.times
    assert second - first > 0.049
    assert third - second > 0.049
    assert [call[0] for call in transport.calls] == ["suspend", "resume", "requeue_hold"]


async def test_other_jobs_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.cluster.adapter.SETTLE_SECONDS", 60.0)
    transport = FakeTransport()
    cluster = port(transport)
    for number in range(50):
        await cluster.suspend(JobId(number))
    assert len(transport.calls) == 50


async def test_resuming_what_runs_already() -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1"))
    transport.failures["resume"] = ClusterRefused("Job is not suspended")
    await port(transport).resume(JOB)


async def test_a_suspend_that_got_no_answer_but_took_effect() -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1", state=("SUSPENDED",)))
    transport.failures["suspend"] = ClusterUnavailable("zero bytes")
    await port(transport).suspend(JOB)


async def test_a_suspend_that_got_no_answer_and_no_effect() -> None:
    transport = FakeTransport(running_record("gres/shard:a100_0:1", "n1"))
    transport.failures["suspend"] = ClusterUnavailable("zero bytes")
    with pytest.raises(ClusterUnavailable, match="zero bytes"):
        await port(transport).suspend(JOB)


async def test_slurmctld_does_not_answer_for_jobs_it_does_not_know() -> None:
    transport = FakeTransport()
    transport.failures["suspend"] = ClusterUnavailable("zero bytes")
    with pytest.raises(UnknownJob):
        await port(transport).suspend(JOB)


@pytest.mark.parametrize(
    "call", ["observe", "job", "bind", "unbind", "release", "hold", "suspend", "resume", "requeue", "end"]
)
async def test_every_call_has_a_deadline(call: str) -> None:
    transport = FakeTransport(job_record())
    transport.hangs = True
    arguments = {"observe": (), "bind": (JOB, N1), "end": (JOB, "why")}.get(call, (JOB,))
    with pytest.raises(ClusterUnavailable, match=r"not done within 0\.05 s"):
        await getattr(port(transport, deadline_seconds=0.05), call)(*arguments)


async def test_arrays_are_split_ahead_but_for_one_task() -> None:
    transport = FakeTransport(job_record(array_job_id=7, array_tasks="0-3"))
    await port(transport).observe()
    assert transport.calls == [("split", JOB, (0, 1, 2))]


async def test_an_array_whose_list_of_tasks_is_cut_short_is_split_as_far_as_it_is_known() -> None:
    transport = FakeTransport(job_record(array_job_id=7, array_tasks="1,3,5,7,1..."))
    cluster = port(transport)
    await cluster.observe()
    assert transport.calls == [("split", JOB, (1, 3, 5))]
    with pytest.raises(ClusterRefused, match="stands for the array tasks"):
        await cluster.bind(JOB, N1)
    with pytest.raises(ClusterRefused, match="release would start all"):
        await cluster.release(JOB)


async def test_large_arrays_are_split_some_tasks_at_a_time() -> None:
    tasks = [job_record(id=100 + i, array_job_id=7, array_task_id=i) for i in range(MAX_WAITING_TASKS - 3)]
    transport = FakeTransport(job_record(array_job_id=7, array_tasks="100-999"), *tasks)
    await port(transport).observe()
    assert transport.calls == [("split", JOB, (100, 101, 102))]


class Unchanging(FakeTransport):
    """Its records are the same object until one of them changes, as pyslurm's are."""

    last: tuple[JobRecord, ...] = ()
    meanwhile: tuple[JobRecord, ...] = ()
    """Jobs that come while an array is split."""

    async def load(self) -> Load:
        load = await super().load()
        if load.jobs != self.last:
            self.last = load.jobs
        return Load(self.last, load.nodes, load.whole_gpu_jobs)

    async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
        await super().split(array_id, tasks)
        self.records[array_id] = self.records[array_id]._replace(array_tasks="3")
        self.records.update((record.id, record) for record in self.meanwhile)
        self.meanwhile = ()


async def test_an_array_that_came_while_another_was_split_is_split_at_the_next_look() -> None:
    transport = Unchanging(job_record(array_job_id=7, array_tasks="0-3"))
    transport.meanwhile = (job_record(id=8, array_job_id=8, array_tasks="0-3"),)
    cluster = port(transport)
    for _ in range(3):
        await cluster.observe()
    assert transport.calls == [("split", JOB, (0, 1, 2)), ("split", JobId(8), (0, 1, 2))]


def test_a_thousand_new_arrays_do_not_keep_from_looking() -> None:
    class Slow(Unchanging):
        async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
            await asyncio.sleep(1)
            await super().split(array_id, tasks)

    async def scenario() -> None:
        arrays = [job_record(id=i, array_job_id=i, array_tasks="0-9") for i in range(1, 1001)]
        transport = Slow(*arrays)
        cluster = port(transport, deadline_seconds=20)
        for looks in (1, 2):
            assert len((await cluster.observe()).jobs) == 1000
            split = [call[:2] for call in transport.calls]
            assert split == [("split", JobId(i)) for i in range(1, 5 * looks + 1)]

    run_virtual(scenario())


async def test_no_more_tasks_are_split_than_the_array_may_run() -> None:
    transport = FakeTransport(
        job_record(array_job_id=7, array_tasks="1-9%2", array_limit=2),
        job_record(id=8, array_job_id=7, array_task_id=0, array_limit=2),
    )
    await port(transport).observe()
    assert transport.calls == [("split", JOB, (1,))]


@pytest.mark.parametrize(
    "changes",
    [
        {"array_tasks": "5"},
        {"dependency": "afterok:3"},
        {"reason": "JobHeldAdmin"},
        {"priority": 5},
        {"begin_time": 4_102_444_800},
    ],
)
async def test_arrays_that_cannot_run_yet_are_left_alone(changes: dict[str, Any]) -> None:
    transport = FakeTransport(job_record(**{"array_job_id": 7, "array_tasks": "0-3", **changes}))
    await port(transport).observe()
    assert transport.calls == []


async def test_an_array_that_changed_meanwhile_does_not_stop_the_view() -> None:
    transport = FakeTransport(job_record(array_job_id=7, array_tasks="0-3"), job_record(id=9))
    transport.failures["split"] = ClusterRefused("it was cancelled")
    view = await port(transport).observe()
    assert {job.id for job in view.jobs} == {7, 9}


async def test_a_record_of_several_tasks_is_not_released() -> None:
    transport = FakeTransport(job_record(array_job_id=7, array_tasks="0-3", dependency="afterok:3"))
    cluster = port(transport)
    await cluster.observe()
    with pytest.raises(ClusterRefused, match="several array tasks"):
        await cluster.release(JOB)
    assert transport.calls == []


async def test_a_view() -> None:
    transport = FakeTransport(job_record(), running_record("gres/shard:a100_1:1", "n2", id=8))
    view = await port(transport).observe()
    assert [node.name for node in view.nodes] == ["n1", "n2"]
    states = {job.id: job.state for job in view.jobs}
    assert states == {7: JobState.PENDING, 8: JobState.RUNNING}


async def test_a_begin_time_that_passes_makes_a_job_eligible(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = FakeTransport(job_record(begin_time=2000))
    cluster = port(transport)
    for now, eligible in ((1000.0, False), (1999.0, False), (2000.0, True), (2001.0, True)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        (job,) = (await cluster.observe()).jobs
        assert job.eligible is eligible, now


async def test_what_changed_shows_in_the_next_view() -> None:
    transport = FakeTransport(
        job_record(array_job_id=6, array_task_id=0, array_limit=1),
        job_record(id=8, array_job_id=6, array_task_id=1, array_limit=1),
    )
    cluster = port(transport)
    first, second = (await cluster.observe()).jobs
    assert first.eligible and not second.eligible
    assert second.obstacle == "waits for its array's limit: 1 task at a time (%1)"
    transport.records[7] = transport.records[7]._replace(state=("COMPLETED",))
    first, second = (await cluster.observe()).jobs
    assert first.state is JobState.ENDED
    assert second.eligible and second.obstacle == ""
