# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults injected into the driver: each breaks what it says, and nothing else."""

from __future__ import annotations

import pytest

from tests.unit.mock_gpu.bench import (
    CONTEXT,
    GIB,
    MIB,
    NOT_READY,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    UNKNOWN,
    CallError,
    Node,
    Worker,
)


@pytest.fixture
def agent(node: Node) -> Worker:
    return node.bare_worker()


def test_lock_timeout_for_one_job(node: Node, agent: Worker) -> None:
    ill, well = node.worker(job=1), node.worker(job=2)
    number = node.run("inject", "lock-timeout", "--job", "1").stdout.strip()
    assert agent.code("lock", ill.pid, 50) == NOT_READY
    assert agent.ask("state", ill.pid) == "running"
    ill.ask("sync", 0)
    agent.ask("lock", well.pid, 1000)
    assert node.run("inject", "--list").stdout == f"fault {number}: lock-timeout job=1\n"
    node.run("inject", "--clear", number)
    agent.ask("lock", ill.pid, 1000)


def test_checkpoint_failure_once(node: Node, agent: Worker) -> None:
    job = node.worker()
    node.run("inject", "checkpoint-fail", "--count", "1")
    agent.ask("lock", job.pid, 1000)
    assert agent.code("checkpoint", job.pid) == OPERATING_SYSTEM
    assert agent.ask("state", job.pid) == "locked"  # the agent can let it go on, or try again
    assert node.used() == CONTEXT
    agent.ask("checkpoint", job.pid)
    assert node.used() == 0


@pytest.mark.parametrize("call", ["checkpoint", "restore"])
def test_fatal_failure(node: Node, agent: Worker, call: str) -> None:
    job = node.worker()
    node.run("inject", f"{call}-fail", "--fatal", "--pid", str(job.pid))
    agent.ask("lock", job.pid, 1000)
    if call == "restore":
        agent.ask("checkpoint", job.pid)
    assert agent.code(call, job.pid) == UNKNOWN
    assert agent.ask("state", job.pid) == "failed"
    with pytest.raises(CallError):
        job.ask("sync", 0)


def test_restore_and_unlock_failure_can_be_tried_again(node: Node, agent: Worker) -> None:
    job = node.worker()
    node.run("inject", "restore-fail", "--count", "1")
    node.run("inject", "unlock-fail", "--count", "1")
    agent.ask("lock", job.pid, 1000)
    agent.ask("checkpoint", job.pid)
    assert agent.code("restore", job.pid) == OPERATING_SYSTEM
    agent.ask("restore", job.pid)
    assert agent.code("unlock", job.pid) == OPERATING_SYSTEM
    agent.ask("unlock", job.pid)
    job.ask("sync", 0)


def test_memory_that_stays_after_a_checkpoint(node: Node, agent: Worker) -> None:
    job = node.worker(job=1)
    job.ask("alloc", 0, GIB)
    node.run("inject", "checkpoint-leak", "--value", "64MiB")
    agent.ask("lock", job.pid, 1000)
    agent.ask("checkpoint", job.pid)
    assert node.on_gpu(0) == {job.pid: 64 * MIB}
    assert node.history()[-1]["held_bytes"] == 64 * MIB
    node.run("inject", "--clear")
    assert node.used() == 0


def test_memory_that_stays_after_it_was_freed(node: Node) -> None:
    job = node.worker()
    address = job.ask("alloc", 0, GIB)
    node.run("inject", "free-leak", "--gpu", "0", "--count", "1")
    job.ask("free", 0, address)
    job.ask("destroy", 0)
    assert node.on_gpu(0) == {}
    assert node.used() == GIB  # nobody's
    node.run("inject", "--clear")
    assert node.used() == 0


def test_out_of_memory_on_demand(node: Node) -> None:
    job = node.worker()
    node.run("inject", "alloc-fail", "--count", "2")
    codes = [job.code("alloc", 0, MIB) for _ in range(3)]
    assert codes == [OUT_OF_MEMORY, OUT_OF_MEMORY, 0]


def test_a_lost_gpu(node: Node) -> None:
    job, other = node.worker(), node.worker(device=1)
    node.run("inject", "gpu-lost", "--gpu", "0")
    assert job.code("spin", 0, 10, 10) == 46  # DEVICE_UNAVAILABLE
    assert job.code("context", 0) == 46
    other.ask("spin", 0, 10, 10)


def test_a_slow_gpu(node: Node) -> None:
    job = node.worker()
    node.run("inject", "speed", "--gpu", "0", "--value", "10")
    assert job.ask("timed", 20_000, 50) >= 0.2


def test_slow_copies(node: Node, agent: Worker) -> None:
    job = node.worker()
    job.ask("alloc", 0, 100 * MIB)
    node.run("inject", "copy-rate", "--value", "500MiB")
    agent.ask("lock", job.pid, 1000)
    agent.send("checkpoint", job.pid)
    assert not agent.answered(0.1)  # 100 MiB at 500 MiB/s
    agent.answer()


def test_wrong_use_is_told(node: Node) -> None:
    for command in (
        ["inject", "earthquake"],
        ["inject", "ecc", "--gpu", "7"],
        ["inject"],
        ["init", "--gpus", "0"],
        ["init", "--memory", "much"],
        ["show", "--all"],
        ["frobnicate"],
    ):
        done = node.run(*command, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("mockgpu: ")
    assert "usage: mockgpu" in node.run("--help").stdout
