# SPDX-License-Identifier: GPL-2.0-or-later
"""The pyslurm adapter: real worker processes, with a stand-in for pyslurm in them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.cluster import pyslurm_worker
from controller.cluster.adapter import SlurmCluster, open_cluster
from controller.cluster.partitions import Partition
from controller.cluster.pyslurm import PyslurmTransport, _Worker
from controller.cluster.records import slurm_job
from controller.errors import ClusterRefused, ClusterUnavailable, SettingsError, UnknownJob
from controller.model import GpuId, JobId
from tests.unit.cluster.factories import REQUEST

JOB = JobId(7)
NODE = {
    "name": "n1",
    "address": "10.0.0.1",
    "hostname": "n1",
    "state": "MIXED+DRAIN",
    "reason": None,
    "configured_gres": {"gpu:a100_0": 1, "shard:a100_0": 16},
    "effective_cpus": 16,
    "real_memory": 8192,
    "memory_reserved_for_system": 1024,
    "allocated_memory": 100,
    "active_features": ["gandiva_a100"],
}
Plan = Callable[..., None]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Set what pyslurm does from now on."""
    source = Path(__file__).with_name("fake_pyslurm.py").read_text()
    (tmp_path / "pyslurm.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def set_plan(**steps: Any) -> None:
        steps = {name.replace("_", "."): step for name, step in steps.items()}
        (tmp_path / "plan").write_text(json.dumps(steps))

    set_plan()
    return set_plan


@pytest.fixture
async def transport(plan: Plan) -> AsyncIterator[PyslurmTransport]:
    plan()
    made = PyslurmTransport()
    yield made
    await made.close()


async def no_partitions() -> tuple[Partition, ...]:
    """Scontrol is not here to be asked."""
    return ()


@pytest.fixture
def squeue_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A squeue that knows job 8 on one GPU. Returns how it was called."""
    answer = {"job_id": 8, "user_id": 0, "job_state": ["RUNNING"], "nodes": "n1"}
    jobs = json.dumps({"jobs": [{**answer, "gres_detail": ["gpu:a100_1:1(IDX:1)"]}]})
    called = tmp_path / "squeues"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho \"$@\" >> {called}\ncat <<'E'\n{jobs}\nE\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: called.read_text().splitlines()


def calls() -> list[str]:
    return Path("calls").read_text().splitlines()


async def test_jobs_and_nodes(plan: Plan, transport: PyslurmTransport) -> None:
    ours = {
        "id": 7,
        "state": "RUNNING",
        "priority": 5,
        "admin_comment": REQUEST,
        "gres_per_node": {"gres/shard:a100_0": 1},
        "allocated_nodes": "n1",
        "start_time": 1000,
        "name": "train",
        "comment": "mine; gandiva-trial:priority=4 \xff",
        "time_limit": "UNLIMITED",
        "max_nodes": "UNLIMITED",
    }
    plan(Jobs_load={"jobs": [ours, {"id": 8, "state": "RUNNING"}]}, Nodes_load={"nodes": [NODE]})
    load = await transport.load()
    (job,) = load.jobs
    assert (job.id, job.user, job.state, job.gres) == (7, "root", ("RUNNING",), "gres/shard:a100_0:1")
    assert job.trial == "gandiva-trial:priority=4"
    assert job.max_nodes == 0
    assert job.memory_per_node_mib == 100
    (node,) = load.nodes
    assert node.state == ("MIXED", "DRAIN")
    assert node.gres == "gpu:a100_0:1,shard:a100_0:16"
    assert node.memory_mib == 7168, "without what Slurm keeps for the system"
    assert load.whole_gpu_jobs == {}


@pytest.mark.parametrize(("reason", "held"), [("JobHeldAdmin", True), ("None", False)])
async def test_a_suspended_job_that_an_operator_holds(
    plan: Plan, transport: PyslurmTransport, reason: str, held: bool
) -> None:
    suspended = {"id": 7, "state": "SUSPENDED", "priority": 0, "state_reason": reason}
    plan(Jobs_load={"jobs": [{**suspended, "admin_comment": REQUEST}]}, Nodes_load={})
    (record,) = (await transport.load()).jobs
    assert slurm_job(record, now=1000.0).user_hold is held


async def test_which_gpus_an_ordinary_job_holds_is_asked_once(
    plan: Plan, transport: PyslurmTransport, squeue_calls: Callable[[], list[str]]
) -> None:
    ordinary = {"id": 8, "state": "RUNNING", "start_time": 1000, "allocated_tres": {"gpu": 2}}
    plan(Jobs_load={"jobs": [ordinary]})
    for _ in range(3):
        assert (await transport.load()).whole_gpu_jobs == {GpuId("n1", 1): JobId(8)}
    assert squeue_calls() == ["--json --states=all --jobs=8"]
    plan(Jobs_load={"jobs": []})
    assert (await transport.load()).whole_gpu_jobs == {}


async def test_an_ordinary_job_whose_gres_pyslurm_cannot_parse_keeps_nobody_from_looking(
    plan: Plan, transport: PyslurmTransport, squeue_calls: Callable[[], list[str]]
) -> None:
    """`--gres=gpu` and `--gres=gpu:a100` name no number, which pyslurm takes for granted."""
    ours = {"id": 7, "state": "PENDING", "admin_comment": REQUEST, "gres_per_node": {"gres/gpu": 1}}
    holding = {"id": 8, "state": "RUNNING", "allocated_tres": {"gpu": 1}, "raises": ["gres_per_node"]}
    other = {"id": 9, "state": "RUNNING", "allocated_tres": {}, "raises": ["gres_per_node"]}
    plan(Jobs_load={"jobs": [ours, holding, other]})
    load = await transport.load()
    assert [job.id for job in load.jobs] == [7]
    assert load.whole_gpu_jobs == {GpuId("n1", 1): JobId(8)}
    assert squeue_calls() == ["--json --states=all --jobs=8"]


async def test_gres_that_pyslurm_cannot_parse_costs_one_job_or_node_only(
    plan: Plan,
    transport: PyslurmTransport,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = {"id": 7, "state": "RUNNING", "admin_comment": REQUEST, "allocated_nodes": "n1", "start_time": 9}
    plan(
        Jobs_load={"jobs": [{**odd, "raises": ["gres_per_node"]}, {**odd, "id": 8}]},
        Nodes_load={"nodes": [NODE, {**NODE, "name": "n2", "raises": ["configured_gres"]}]},
    )
    monkeypatch.setattr(transport, "partitions", no_partitions)
    view = await SlurmCluster(transport, deadline_seconds=30.0).observe()
    assert [(job.id, job.binding, job.exclusive_gpus) for job in view.jobs] == [
        (7, frozenset(), True),
        (8, frozenset(), True),
    ]
    assert [(node.name, len(node.gpus)) for node in view.nodes] == [("n1", 1), ("n2", 0)]
    assert "node n2: '(pyslurm cannot read it)'" in caplog.text


async def test_a_deadline_and_a_time_limit(plan: Plan, transport: PyslurmTransport) -> None:
    job = {"id": 7, "state": "PENDING", "admin_comment": REQUEST}
    plan(Jobs_load={"jobs": [job, {**job, "id": 8, "deadline": 2000, "time_limit": 90}]}, Nodes_load={})
    found = [(record.deadline, record.time_limit_minutes) for record in (await transport.load()).jobs]
    assert found == [(0, 0), (2000, 90)]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (None, ""),
        ({"afterok": ["7(unfulfilled)"], "afterany": [8], "singleton": False, "satisfy": "all"},
         "afterok:7(unfulfilled),afterany:8"),
        ({"afterok": ["7(failed)", "8_*"], "satisfy": "any"}, "afterok:7(failed)?afterok:8_*"),
        ({"afterok": [], "singleton": False, "satisfy": "all"}, "singleton"),
    ],
)  # fmt: skip
async def test_dependencies_are_told_as_slurm_writes_them(
    plan: Plan, transport: PyslurmTransport, parts: dict[str, Any] | None, text: str
) -> None:
    plan(Job_load={"job": {"id": 7, "dependencies": parts}})
    assert (await transport.job(JOB)).dependency == text


async def test_task_zero_of_an_array_is_a_task(plan: Plan, transport: PyslurmTransport) -> None:
    plan(Job_load={"job": {"id": 7, "array_id": 6, "array_task_id": None}})
    assert (await transport.job(JOB)).array_task_id == 0
    array = {"id": 7, "array_id": 7, "array_tasks_waiting": "0-3%2", "array_tasks_parallel": 2}
    plan(Job_load={"job": array})
    record = await transport.job(JOB)
    assert (record.array_task_id, record.array_limit) == (-1, 2)


async def test_the_id_of_an_array_is_looked_for_among_all_jobs(
    plan: Plan, transport: PyslurmTransport
) -> None:
    plan(Job_load={"job": {"id": 8}}, Jobs_load={"jobs": [{"id": 8}, {"id": 7, "name": "wanted"}]})
    assert (await transport.job(JOB)).name == "wanted"
    plan(Job_load={"job": {"id": 8}}, Jobs_load={"jobs": [{"id": 8}]})
    with pytest.raises(UnknownJob):
        await transport.job(JOB)


@pytest.mark.parametrize(("code", "shown"), [(3, 3), (0, 128)])
async def test_exit_codes(plan: Plan, transport: PyslurmTransport, code: int, shown: int) -> None:
    """pyslurm says 0 for 128."""
    plan(Job_load={"job": {"id": 7, "state": "FAILED", "exit_code": code}})
    assert (await transport.job(JOB)).exit_code == shown


async def test_binding(transport: PyslurmTransport) -> None:
    gres, nodes = ("shard:a100_2", "shard:a100_3"), ("n1", "n2")
    await transport.bind(JOB, gres, nodes, resize=False)
    (call,) = calls()
    assert call.startswith("modify(7, ")
    assert json.loads(call.removeprefix("modify(7, ").removesuffix(")")) == {
        "gres_per_node": {"shard:a100_2": 1, "shard:a100_3": 1},
        "required_nodes": ["n1", "n2"],
        "begin_time": 1,
    }


async def test_suspend_resume_release(transport: PyslurmTransport) -> None:
    await transport.suspend(JOB)
    await transport.resume(JOB)
    await transport.release(JOB)
    assert calls() == ["suspend(7)", "unsuspend(7)", "release(7)"]


@pytest.mark.parametrize(
    ("errno", "message", "expected"),
    [
        (2017, "Invalid job id specified", UnknownJob),
        (2024, "Job is pending execution", ClusterRefused),
        (2072, "Invalid generic resource (gres) specification", ClusterRefused),
        (2020, "Job is in transition state", ClusterUnavailable),
        (1800, "Unable to contact slurm controller (connect failure)", ClusterUnavailable),
        (5004, "Socket timed out on send/recv operation", ClusterUnavailable),
        (1007, "Protocol authentication error", ClusterUnavailable),
        (111, "Connection refused", ClusterUnavailable),
        (0, "Success", ClusterUnavailable),
    ],
)
async def test_slurms_errors(
    plan: Plan, transport: PyslurmTransport, errno: int, message: str, expected: type[Exception]
) -> None:
    plan(suspend={"errno": errno, "message": message})
    with pytest.raises(expected) as caught:
        await transport.suspend(JOB)
    assert type(caught.value) is expected
    assert message in str(caught.value) and "job 7" in str(caught.value)


async def test_a_bug_in_pyslurm_does_not_end_the_worker(plan: Plan, transport: PyslurmTransport) -> None:
    plan(suspend={"bug": "surprise"})
    with pytest.raises(ClusterUnavailable, match="ValueError: surprise"):
        await transport.suspend(JOB)
    plan()
    await transport.suspend(JOB)


async def test_a_crash_costs_one_call(plan: Plan, transport: PyslurmTransport) -> None:
    plan(suspend={"exit": True})
    with pytest.raises(ClusterUnavailable, match=r"worker died.*invalid pointer"):
        await transport.suspend(JOB)
    plan()
    await transport.suspend(JOB)


async def test_a_call_that_hangs_ends_at_the_deadline_and_the_next_one_works(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = PyslurmTransport()
    monkeypatch.setattr(transport, "partitions", no_partitions)
    port = SlurmCluster(transport, deadline_seconds=60.0)
    plan(Jobs_load={"jobs": [], "sleep": 600}, Job_load={"job": {"id": 7}})
    observing = asyncio.ensure_future(SlurmCluster(transport, deadline_seconds=1.0).observe())
    assert (await port.job(JOB)).id == 7, "another worker answers meanwhile"
    with pytest.raises(ClusterUnavailable, match="not done within 1 s"):
        await observing
    plan(Jobs_load={"jobs": []})
    assert (await port.observe()).jobs == ()
    await port.close()


async def test_the_working_directory_is_not_where_workers_find_modules(
    transport: PyslurmTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/controller.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path / "elsewhere")
    await transport.suspend(JOB)


async def test_more_calls_than_workers_wait_for_their_turn(transport: PyslurmTransport) -> None:
    await asyncio.gather(*(transport.suspend(JobId(i)) for i in range(20)))
    assert sorted(calls()) == sorted(f"suspend({i})" for i in range(20))


@pytest.mark.parametrize(
    ("start", "problem"), [("exit", "configuration source"), ("raise", r"libslurm\.so\.45")]
)
async def test_a_pyslurm_that_does_not_start(
    plan: Plan, transport: PyslurmTransport, start: str, problem: str
) -> None:
    plan(start=start)
    with pytest.raises(ClusterUnavailable, match=problem):
        await transport.load()
    plan(Jobs_load={"jobs": []})
    assert (await transport.load()).jobs == ()


async def test_a_worker_that_dies_in_the_middle_of_an_answer(
    transport: PyslurmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else that is known of it (its exit, its last words) may have been read before the answer ends."""

    async def cut_short(worker: _Worker) -> None:
        process = worker._process
        assert process is not None
        process.kill()
        while worker._tasks:
            await asyncio.wait(set(worker._tasks))
        raise asyncio.IncompleteReadError(b"", 100)

    await transport.suspend(JOB)
    with monkeypatch.context() as patched:
        patched.setattr(_Worker, "_answer", cut_short)
        with pytest.raises(ClusterUnavailable, match="the pyslurm worker died"):
            await transport.suspend(JOB)
    await transport.suspend(JOB)


async def test_closing_does_not_wait_for_ever(
    transport: PyslurmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be killed."""
    monkeypatch.setattr("controller.cluster.pyslurm._REAP_SECONDS", 0.01)
    never = asyncio.get_running_loop().create_future()
    transport._all[0]._follow(never)
    await asyncio.wait_for(transport.close(), 60)
    never.cancel()


@pytest.mark.parametrize("field", ["name", "admin_comment"])
def test_texts_that_are_no_text_do_not_end_the_look(field: str) -> None:
    class Job:
        @property
        def name(self) -> str:
            return b"\xff".decode()

        admin_comment = name

    assert pyslurm_worker._text(Job(), field) == "?"


def test_a_user_without_a_name_is_not_asked_for_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    names: dict[int, str] = {}
    now = 1000.0

    def getpwuid(uid: int) -> SimpleNamespace:
        asked.append(uid)
        return SimpleNamespace(pw_name=names[uid])

    monkeypatch.setattr(pyslurm_worker, "_users", {})
    monkeypatch.setattr(pyslurm_worker, "pwd", SimpleNamespace(getpwuid=getpwuid))
    monkeypatch.setattr(pyslurm_worker, "time", SimpleNamespace(monotonic=lambda: now))
    assert [pyslurm_worker._user(4711) for _ in range(3)] == ["4711"] * 3
    assert asked == [4711]
    names[4711] = "alice"
    now += pyslurm_worker._NAMELESS_SECONDS
    assert [pyslurm_worker._user(4711) for _ in range(3)] == ["alice"] * 3
    assert asked == [4711, 4711]


def test_users_without_a_name_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyslurm_worker, "_users", {})
    monkeypatch.setattr(pyslurm_worker, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    for uid in range(25_000):
        pyslurm_worker._user(uid)
    assert len(pyslurm_worker._users) <= 10_000


def test_a_host_without_pyslurm_is_told_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match="'command'"):
        open_cluster("pyslurm", deadline_seconds=1)


async def test_a_host_that_starts_no_more_processes_is_slurm_out_of_reach(
    plan: Plan, transport: PyslurmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of another kind would end the controller."""

    async def no_more(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    plan()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", no_more)
        with pytest.raises(ClusterUnavailable, match="cannot start a pyslurm worker: Resource temp"):
            await transport.suspend(JOB)
    await transport.suspend(JOB)


async def test_the_workers_have_slurms_environment(
    plan: Plan, transport: PyslurmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "another")
    plan(Jobs_load={"jobs": []}, Nodes_load={"nodes": [NODE]})
    await transport.load()
    (process,) = (worker._process for worker in transport._all if worker._process)
    environ = Path(f"/proc/{process.pid}/environ").read_bytes()  # noqa: ASYNC240
    assert b"TZ=UTC0" in environ and b"SLURM_CLUSTERS" not in environ
