# SPDX-License-Identifier: GPL-2.0-or-later
"""The driver's checkpoint calls on another process: the cycle, and every way in which it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.mock_gpu.bench import (
    COMMUNICATOR,
    CONTEXT,
    EXAMPLES,
    GIB,
    ILLEGAL_STATE,
    INVALID_VALUE,
    MIB,
    NOT_INITIALIZED,
    NOT_PERMITTED,
    NOT_READY,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    TIMEOUT,
    UNKNOWN,
    Node,
    Worker,
    wait_until,
)


@pytest.fixture
def agent(node: Node) -> Worker:
    """A process that makes checkpoint calls; it has not called cuInit and needs no GPU itself."""
    return node.bare_worker(CUDA_VISIBLE_DEVICES="")


def suspend(agent: Worker, pid: int) -> None:
    agent.ask("lock", pid, 5000)
    agent.ask("checkpoint", pid)


def test_the_whole_cycle(node: Node, agent: Worker) -> None:
    job = node.worker(job=7)
    address = job.ask("alloc", 0, GIB)
    job.ask("step", 0, 1000, 50, address, 65536, 3)
    before = job.ask("digest", 0, address, 65536)

    assert agent.ask("state", job.pid) == "running"
    agent.ask("lock", job.pid, 1000)
    assert agent.ask("state", job.pid) == "locked"
    assert node.on_gpu(0) == {job.pid: CONTEXT + GIB}  # locked still means there
    agent.ask("checkpoint", job.pid)
    assert agent.ask("state", job.pid) == "checkpointed"
    assert node.on_gpu(0) == {}
    assert node.used() == 0

    job.send("digest", 0, address, 65536)
    assert not job.answered(0.1)  # its next call blocks …
    agent.ask("restore", job.pid)
    assert agent.ask("state", job.pid) == "locked"
    assert not job.answered(0.05)
    assert node.on_gpu(0) == {job.pid: CONTEXT + GIB}
    agent.ask("unlock", job.pid)
    assert job.answer() == before  # … and then finds everything as it was
    assert agent.ask("state", job.pid) == "running"
    events = [event["event"] for event in node.history("--job", "7") if event["event"] != "busy"]
    assert events == ["context-create", "alloc", "lock", "checkpoint", "restore", "unlock"]


def test_a_process_may_do_it_to_itself(node: Node) -> None:
    job = node.worker()
    suspend(job, job.pid)
    job.ask("restore", job.pid)
    job.ask("unlock", job.pid)
    assert job.ask("state", job.pid) == "running"


def test_lock_waits_for_the_kernel_or_gives_up(node: Node, agent: Worker) -> None:
    job = node.worker()
    job.ask("spin", 0, 2_000_000, 50)
    assert agent.code("lock", job.pid, 100) == NOT_READY
    assert agent.ask("state", job.pid) == "running"  # nothing has happened
    job.ask("alloc", 0, MIB)
    # The kernel is on its own now; a lock with patience gets through once it has ended.
    agent.ask("lock", job.pid, 20_000)
    assert agent.ask("state", job.pid) == "locked"
    assert not any(client["kernel_running"] for p in node.show()["processes"] for client in p["gpus"])


def test_a_stopped_process_does_not_answer(bare_node: Node) -> None:
    node = bare_node.init("--operation-timeout-ms", "1000")
    job, agent = node.worker(), node.bare_worker()
    job.signal(signal.SIGSTOP)
    assert agent.code("lock", job.pid, 100) == NOT_READY
    job.signal(signal.SIGCONT)
    agent.ask("lock", job.pid, 5000)
    job.signal(signal.SIGSTOP)
    assert agent.code("checkpoint", job.pid) == TIMEOUT
    assert node.used() == CONTEXT
    job.signal(signal.SIGCONT)
    agent.ask("checkpoint", job.pid)  # what timed out was taken back, and can be done now
    job.signal(signal.SIGSTOP)
    assert agent.code("restore", job.pid) == TIMEOUT
    assert node.used() == 0
    job.signal(signal.SIGCONT)
    agent.ask("restore", job.pid)
    agent.ask("unlock", job.pid)
    job.ask("sync", 0)


def test_a_request_of_a_killed_agent_can_be_harmless(bare_node: Node) -> None:
    node = bare_node.init("--killed-caller", "harmless")
    job, agent = node.worker(), node.bare_worker()
    job.signal(signal.SIGSTOP)
    agent.send("lock", job.pid, 60_000)
    wait_until(lambda: [p["call"] for p in node.show()["processes"]] == ["lock"])
    agent.kill()
    job.signal(signal.SIGCONT)
    job.ask("sync", 0)
    other = node.bare_worker()
    assert other.ask("state", job.pid) == "running"
    suspend(other, job.pid)


@pytest.mark.parametrize("call", ["lock", "checkpoint", "restore"])
def test_a_caller_killed_in_mid_call_leaves_the_process_out_of_sync(bare_node: Node, call: str) -> None:
    node = bare_node.init("--copy-rate", "1GiB")
    job, agent, other = node.worker(), node.bare_worker(), node.bare_worker()
    job.ask("alloc", 0, GIB)
    if call == "lock":
        job.ask("spin", 0, 10_000_000, 50)  # the lock waits for this kernel
        agent.send("lock", job.pid, 60_000)
    else:
        agent.ask("lock", job.pid, 1000)
        if call == "restore":
            agent.ask("checkpoint", job.pid)
        agent.send(call, job.pid)
        wait_until(lambda: other.ask("state", job.pid) == f"{call.removesuffix('e')}ing")
    wait_until(lambda: [p["call"] for p in node.show()["processes"]] == [call])
    agent.kill()
    left = {"lock": "running", "checkpoint": "locked", "restore": "checkpointed"}[call]
    wait_until(lambda: other.ask("state", job.pid) == left)
    for later in ("lock", "checkpoint", "restore", "unlock"):
        arguments = (job.pid, 1000) if later == "lock" else (job.pid,)
        assert other.code(later, *arguments) == OPERATING_SYSTEM
    job.send("sync", 0)
    assert not job.answered(0.3)  # it waits for ever
    job.kill()
    assert node.used() == 0


def test_a_checkpoint_moves_the_memory_to_the_process(node: Node, agent: Worker) -> None:
    job = node.worker()
    address = job.ask("alloc", 0, GIB)
    job.ask("fill", 0, address + 512 * MIB, 7, 64 * MIB)
    written = job.ask("digest", 0, address + 512 * MIB, MIB)
    before = node.resident(job)
    suspend(agent, job.pid)
    assert 60 * MIB < node.resident(job) - before < 80 * MIB  # what was written to, and nothing else
    agent.ask("restore", job.pid)
    agent.ask("unlock", job.pid)
    assert job.ask("digest", 0, address + 512 * MIB, MIB) == written
    assert node.resident(job) - before < 10 * MIB


def test_communicators_take_memory_and_cannot_be_checkpointed(node: Node, agent: Worker) -> None:
    job = node.worker()
    job.ask("communicator", 0)
    assert node.used() == CONTEXT + COMMUNICATOR
    agent.ask("lock", job.pid, 1000)
    assert agent.code("checkpoint", job.pid) == NOT_SUPPORTED
    assert agent.ask("state", job.pid) == "locked"
    agent.ask("unlock", job.pid)
    job.ask("no_communicator", 0)
    assert node.used() == CONTEXT
    suspend(agent, job.pid)
    assert node.used() == 0


def test_memory_that_stands_for_more(bare_node: Node) -> None:
    node = bare_node.init("--copy-rate", "4GiB")
    job = node.worker()
    address = job.ask("alloc", 0, 65536, GIB)
    assert node.used() == CONTEXT + GIB
    job.send("digest", 0, address, 65536)
    assert not job.answered(0.15)  # 250 ms for 1 GiB
    job.answer()
    job.send("digest", 0, address, 8)
    assert job.answered(0.15)
    job.answer()
    job.ask("free", 0, address)
    assert node.used() == CONTEXT


def test_calls_in_the_wrong_state(node: Node, agent: Worker) -> None:
    job = node.worker()
    assert agent.code("checkpoint", job.pid) == ILLEGAL_STATE
    assert agent.code("restore", job.pid) == ILLEGAL_STATE
    assert agent.code("unlock", job.pid) == ILLEGAL_STATE
    suspend(agent, job.pid)
    assert agent.code("lock", job.pid, 100) == ILLEGAL_STATE
    assert agent.code("unlock", job.pid) == ILLEGAL_STATE


def test_processes_that_cannot_be_locked(node: Node, agent: Worker) -> None:
    assert agent.code("state", os.getpid()) == NOT_INITIALIZED  # lives, but has no CUDA
    assert agent.code("restore_thread", os.getpid()) == NOT_INITIALIZED
    assert agent.code("lock", node.worker(device=None).pid, 100) == NOT_INITIALIZED  # no context
    gone = node.worker()
    gone.kill()
    assert agent.code("state", gone.pid) == INVALID_VALUE


def test_the_restore_thread_is_a_thread_of_the_process(node: Node, agent: Worker) -> None:
    job = node.worker()
    tid = agent.ask("restore_thread", job.pid)
    assert tid != job.pid
    assert Path(f"/proc/{job.pid}/task/{tid}").exists()
    assert agent.ask("state", tid) == "running"  # the driver takes a thread for its process


def test_restore_on_other_gpus(bare_node: Node) -> None:
    node = bare_node.init(gpus=3)
    job, agent = node.worker(), node.bare_worker()
    job.ask("context", 1)
    small, large = job.ask("alloc", 0, GIB), job.ask("alloc", 1, 2 * GIB)
    job.ask("fill", 0, small, 1, GIB // 1024)
    job.ask("fill", 1, large, 2, GIB // 1024)
    before = [job.ask("digest", 0, small, 4096), job.ask("digest", 1, large, 4096)]
    zero, one, two = job.ask("uuids")

    suspend(agent, job.pid)
    # A map that moves anything must name every GPU the process could open, used or not, each once.
    for wrong in ({zero: two}, {zero: two, one: one}, {zero: two, one: two, two: zero}):
        assert agent.code("restore", job.pid, wrong) == INVALID_VALUE
    assert agent.ask("state", job.pid) == "checkpointed"
    agent.ask("restore", job.pid, {zero: two, one: zero, two: one})
    agent.ask("unlock", job.pid)
    assert [node.used(gpu) for gpu in range(3)] == [CONTEXT + 2 * GIB, 0, CONTEXT + GIB]
    assert [job.ask("digest", 0, small, 4096), job.ask("digest", 1, large, 4096)] == before
    assert job.ask("uuids") == [two, zero, one]

    # And back: the map speaks of where it is now.
    suspend(agent, job.pid)
    agent.ask("restore", job.pid, {two: zero, zero: one, one: two})
    agent.ask("unlock", job.pid)
    assert [node.used(gpu) for gpu in range(3)] == [CONTEXT + GIB, CONTEXT + 2 * GIB, 0]


@pytest.mark.parametrize(
    ("visible", "allowed"),
    [("0", 3), ("0,1", 3), ("0,1,2", 2)],
    ids=["one of three is visible", "two of three are visible", "a device the job may not open"],
)
def test_a_strict_driver_refuses_to_move(bare_node: Node, visible: str, allowed: int) -> None:
    node = bare_node.init("--device-map", "strict", gpus=3)
    uuids = [gpu["uuid"] for gpu in node.show()["gpus"]]
    for gpu in range(allowed, 3):
        (node.devices / f"nvidia{gpu}").unlink()
    job, agent = node.worker(CUDA_VISIBLE_DEVICES=visible), node.bare_worker()
    suspend(agent, job.pid)
    swap = {uuids[0]: uuids[1], uuids[1]: uuids[0]}
    assert agent.code("restore", job.pid, swap) == INVALID_VALUE
    whole = agent.code("restore", job.pid, swap | {uuids[2]: uuids[2]})
    assert whole == (INVALID_VALUE if allowed == 3 else 0)
    if allowed == 3:
        assert agent.ask("state", job.pid) == "checkpointed"
        agent.ask("restore", job.pid, {uuid: uuid for uuid in uuids})  # where it was
    agent.ask("unlock", job.pid)
    assert job.ask("sync", 0) is None


def test_no_restore_on_another_model(bare_node: Node) -> None:
    node = bare_node.init("--model", "a100,v100")
    job, agent = node.worker(), node.bare_worker()
    zero, one = job.ask("uuids")
    suspend(agent, job.pid)
    assert agent.code("restore", job.pid, {zero: one, one: zero}) == INVALID_VALUE
    agent.ask("restore", job.pid)


def test_no_restore_on_a_device_that_the_job_may_not_open(node: Node, agent: Worker) -> None:
    job = node.worker()
    zero, one = job.ask("uuids")
    suspend(agent, job.pid)
    (node.devices / "nvidia1").unlink()
    assert agent.code("restore", job.pid, {zero: one, one: zero}) == OPERATING_SYSTEM
    assert agent.ask("state", job.pid) == "checkpointed"
    agent.ask("restore", job.pid)


def test_restore_without_memory_is_the_end(bare_node: Node) -> None:
    node = bare_node.init("--memory", "4GiB")
    job, other, agent = node.worker(), node.worker(), node.bare_worker()
    job.ask("alloc", 0, 2 * GIB)
    suspend(agent, job.pid)
    address = other.ask("alloc", 0, 3 * GIB)
    assert agent.code("restore", job.pid) == OUT_OF_MEMORY
    assert agent.ask("state", job.pid) == "checkpointed"
    other.ask("free", 0, address)
    # Enough memory now; but driver 580 has lost the process (NVIDIA/cuda-checkpoint issue 44).
    assert agent.code("restore", job.pid) == OPERATING_SYSTEM
    assert agent.code("unlock", job.pid) == ILLEGAL_STATE
    job.kill()
    assert node.used() == CONTEXT


def test_restore_without_memory_as_failure(bare_node: Node) -> None:
    node = bare_node.init("--memory", "4GiB", "--restore-oom", "failed")
    job, other, agent = node.worker(), node.worker(), node.bare_worker()
    job.ask("alloc", 0, 2 * GIB)
    suspend(agent, job.pid)
    other.ask("alloc", 0, 3 * GIB)
    job.send("sync", 0)
    assert agent.code("restore", job.pid) == OUT_OF_MEMORY
    assert agent.ask("state", job.pid) == "failed"
    with pytest.raises(Exception, match=str(UNKNOWN)):
        job.answer()  # the process finds out at the call in which it waited


def test_a_process_that_dies_while_suspended_is_forgotten(node: Node, agent: Worker) -> None:
    job = node.worker()
    suspend(agent, job.pid)
    job.kill()
    assert agent.code("restore", job.pid) == INVALID_VALUE
    assert node.show()["processes"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_only_root_and_the_owner_may(node: Node) -> None:
    job = node.worker()
    # Libraries and state may be out of that user's reach, so they are loaded while still root.
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import mockcuda\n"
        "mockcuda.init(); os.setuid(65534)\n"
        "try: mockcuda.checkpoint_lock(int(sys.argv[2]), 100)\n"
        "except mockcuda.CudaError as error: print(error.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(EXAMPLES), str(job.pid)],
        env=node.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(NOT_PERMITTED)], done.stderr


def test_copying_takes_time_when_asked_to(bare_node: Node) -> None:
    node = bare_node.init("--copy-rate", "4GiB")
    job, agent = node.worker(), node.bare_worker()
    job.ask("alloc", 0, GIB)
    agent.ask("lock", job.pid, 1000)
    agent.send("checkpoint", job.pid)
    assert not agent.answered(0.1)  # 250 ms for 1 GiB
    assert node.used() == CONTEXT + GIB  # the memory goes at the end
    agent.answer()
    assert node.used() == 0
    agent.send("restore", job.pid)
    wait_until(lambda: node.used() == CONTEXT + GIB)  # and comes at the beginning
    agent.answer()


def test_the_utility_of_the_same_name(node: Node) -> None:
    job = node.worker()
    pid = str(job.pid)
    assert node.cuda_checkpoint("--get-state", "--pid", pid).stdout == "running\n"
    assert node.cuda_checkpoint("--toggle", "--pid", pid).returncode == 0
    assert node.cuda_checkpoint("--get-state", "--pid", pid).stdout == "checkpointed\n"
    zero, one = (gpu["uuid"] for gpu in node.show()["gpus"])
    swap = f"{zero}={one},{one}={zero}"
    assert node.cuda_checkpoint("--action", "restore", "--pid", pid, "-d", swap).returncode == 0
    assert node.cuda_checkpoint("--action", "unlock", "--pid", pid).returncode == 0
    assert list(node.on_gpu(1)) == [job.pid]
    failed = node.cuda_checkpoint("--action", "checkpoint", "--pid", pid)
    assert failed.returncode == 1
    assert "present state" in failed.stderr
    assert node.cuda_checkpoint("--get-restore-tid", "--pid", str(os.getpid())).returncode == 1
