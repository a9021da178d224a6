# SPDX-License-Identifier: GPL-2.0-or-later
"""The root side of the control block."""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from checkpointing.driver_process import DriverProcesses
from controller.agent import control_block, rank_room
from controller.agent.control_block import ControlBlock, ControlBlocks, JobState
from controller.agent.deadline import Deadline
from controller.agent.files import try_lock
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.identity import SlurmJobs
from controller.agent.node import AgentSettings, Node
from controller.agent.processes import Processes
from controller.agent.verbs import NodeAgent
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase
from gandiva import layout
from gandiva.layout import Verb


@pytest.fixture
def block(tmp_path: Path) -> ControlBlock:
    made = ControlBlocks(tmp_path / "run").block(12)
    made.create(os.getuid())
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_block_has_the_modes_of_the_contract(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        block = ControlBlocks(tmp_path / "run").block(12)
        block.create(os.getuid())
        block.write_visible([1])
        block.write_turn(True, ["195:1"], ["195:0"])
        block.save_state(JobState(job_id=12, uid=os.getuid()))
        with block.locked(Deadline(60.0)):
            pass
    finally:
        os.umask(old)
    assert mode(block.path) == 0o755
    assert mode(block.ranks) == 0o700
    assert mode(block.path / "command") == mode(block.path / "turn") == 0o644
    assert (block.path / "turn").read_text() == "on +195:1 -195:0\n"
    assert mode(block.path / "visible") == 0o644
    assert mode(block.path / "agent.json") == 0o600
    # A user who could open it could hold the lock for ever.
    assert mode(block.path / "agent.lock") == 0o600
    assert (block.path / "command").stat().st_size == layout.RECORD_BYTES


AGENT = """
import sys, time
from pathlib import Path
from controller.agent.control_block import ControlBlocks
from controller.agent.deadline import Deadline
with ControlBlocks(Path(sys.argv[1])).block(12).locked(Deadline(0.0)):
    pass
print("let go", flush=True)
time.sleep(60)
"""


def test_an_agent_that_let_go_is_not_ended_for_the_one_that_has_the_lock_now(
    block: ControlBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next holder has the lock a moment before it has signed."""
    monkeypatch.setattr(control_block, "HUNG_SECONDS", 0.0)
    words = [sys.executable, "-c", AGENT, str(block.path.parent), "gandiva-agent"]
    agent = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None and agent.stdout.readline() == b"let go\n"
        with (block.path / "agent.lock").open("rb+") as held, (block.path / "agent.lock").open("rb+") as file:
            assert try_lock(held.fileno()) and not try_lock(file.fileno())
            assert not control_block._end_hung_agent(file.fileno(), 12)
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.communicate(timeout=60)


def test_a_command_is_changed_in_place_and_numbered(block: ControlBlock) -> None:
    with (block.path / "command").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), layout.RECORD_BYTES, prot=mmap.PROT_READ)
    first = block.write_command(Verb.PAUSE, 7)
    assert layout.parse_command(mapped[: layout.COMMAND.size]) == (Verb.PAUSE, first, 7, 0, 0)
    assert block.write_command(Verb.PAUSE, 7) == first
    second = block.write_command(Verb.PAUSE, 8)
    assert second == first + 2
    assert layout.parse_command(mapped[: layout.COMMAND.size]) == (Verb.PAUSE, second, 8, 0, 0)
    mapped.close()


def test_a_memory_limit_is_no_command_and_outlasts_commands(block: ControlBlock) -> None:
    before = block.write_command(Verb.PAUSE, 7, 2)
    block.write_memory_limit(3 << 30)
    assert block.read_command() == (Verb.PAUSE, before, 7, 2, 3 << 30)
    assert block.write_command(Verb.PAUSE, 7) == before
    after = block.write_command(Verb.RUN, 0)
    assert block.read_command() == (Verb.RUN, after, 0, 2, 3 << 30)
    assert (block.path / "command").read_bytes()[32:40] == (3 << 30).to_bytes(8, "little")
    block.write_memory_limit(0)
    assert block.read_command() == (Verb.RUN, after, 0, 2, 0)


def test_a_command_that_was_left_half_written_is_written_anew(block: ControlBlock) -> None:
    before = block.write_command(Verb.RUN, 0)
    with (block.path / "command").open("r+b") as file:
        file.seek(8)
        file.write((before + 1).to_bytes(8, "little"))
    assert block.read_command() is None
    after = block.write_command(Verb.RUN, 0)
    assert after == before + 2
    assert block.read_command() == (Verb.RUN, after, 0, 0, 0)


def test_a_block_of_another_user_is_made_anew(block: ControlBlock) -> None:
    (block.ranks / "0").write_bytes(b"old")
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    block.create(4711)
    assert block.uid() == 4711
    assert list(block.ranks.iterdir()) == []


def test_ranks_replaced_by_a_link_are_made_anew(block: ControlBlock, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").touch()
    rank_room.drop(block.ranks)
    block.ranks.rmdir()
    block.ranks.symlink_to(target)
    block.create(os.getuid())
    assert not block.ranks.is_symlink()
    assert (target / "file").exists()


def test_removing_survives_what_a_user_can_nest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # (On a file system of its own it would be over after a thousand.)
    monkeypatch.setattr(rank_room, "_mount", lambda *_: "not permitted")
    block = ControlBlocks(tmp_path / "run").block(12)
    block.create(os.getuid())
    deep = os.open(block.ranks, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        inner = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    block.remove()
    assert list(block.path.parent.iterdir()) == []
    block.remove()


def test_what_an_agent_put_aside_and_did_not_delete_is_deleted_later(tmp_path: Path) -> None:
    blocks = ControlBlocks(tmp_path)
    (tmp_path / ".trash-12-1-0" / "x").mkdir(parents=True)
    (tmp_path / ".gone.11.4711" / "ranks").mkdir(parents=True)  # by an epilog whose 20 s were over
    (tmp_path / "13").mkdir()
    (tmp_path / "lost+found").mkdir()
    blocks.empty(blocks.trash())
    assert blocks.job_ids() == [13]
    assert {path.name for path in tmp_path.iterdir()} == {"13", "lost+found"}
    assert ControlBlocks(tmp_path / "nowhere").job_ids() == []


def test_a_new_agent_does_not_wait_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have left millions of files: their node would be without an agent for as long."""
    go_on, removed = threading.Event(), threading.Event()

    def remove(_path: Path) -> None:
        go_on.wait(60.0)
        removed.set()

    monkeypatch.setattr(control_block, "_remove_tree", remove)
    (tmp_path / ".gone.11.4711").mkdir()
    settings = AgentSettings("n1", tmp_path, None)
    NodeAgent(settings, GpuReader(NvmlSource()), DriverProcesses()).start()
    assert not removed.is_set()
    go_on.set()
    assert removed.wait(60.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"job_id": 12}',
        '{"job_id": 13, "uid": 5}',
        '{"job_id": 12, "uid": 5, "phase": "odd"}',
        '{"job_id": 12, "uid": 5, "gpus": [0, 0]}',
        "x" * 100_000,
    ],
)
def test_a_state_that_cannot_be_read_counts_as_none(block: ControlBlock, text: str) -> None:
    (block.path / "agent.json").write_text(text)
    assert block.load_state() is None


def test_a_state_survives_and_may_say_more_than_we_know(block: ControlBlock) -> None:
    state = JobState(job_id=12, uid=5, phase=NodePhase.YIELDED, gpus=(2, 0), residual_bytes=7)
    block.save_state(state)
    assert block.load_state() == state
    text = json.loads((block.path / "agent.json").read_text())
    (block.path / "agent.json").write_text(json.dumps({**text, "from_the_future": 1}))
    assert block.load_state() == state
    with pytest.raises(ValueError, match="twice"):
        state.but(gpus=(1, 1))


def test_a_state_that_is_written_in_part_does_not_take_the_place_of_the_last(
    block: ControlBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full tmpfs takes as many pages as it has left, and says no more than how many bytes that was."""
    before = block.save_state(JobState(job_id=12, uid=1000, gpus=(2,), phase=NodePhase.YIELDED))
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:20], at))
    with pytest.raises(OSError, match="No space left"):
        block.save_state(before.but(phase=NodePhase.RUNNING))
    assert block.load_state() == before


@pytest.mark.parametrize(("phase", "turn"), [(NodePhase.RUNNING, "on"), (NodePhase.YIELDED, "off")])
def test_jobs_of_an_older_agent_have_a_turn(block: ControlBlock, phase: NodePhase, turn: str) -> None:
    """Version 3 of the protocol had none, and steps of a job without one wait for it."""
    block.save_state(JobState(job_id=12, uid=os.getuid(), phase=phase, gpus=(1,), binding=(0, 1)))
    started = ControlBlocks(block.path.parent).block(13)
    started.create(os.getuid())
    reader = GpuReader(NvmlSource())
    settings = AgentSettings("n1", block.path.parent, None)
    for _ in range(2):
        NodeAgent(settings, reader, DriverProcesses()).start()
        assert (block.path / "turn").read_text().split()[0] == turn
        block.write_turn(False, [], [])
        turn = "off"
    assert started.is_on() is None, "nobody has prepared this one"


def test_two_agents_do_not_work_on_one_job(block: ControlBlock) -> None:
    other = ControlBlocks(block.path.parent).block(12)
    with block.locked(Deadline(60.0)):
        with pytest.raises(AgentError) as refused, other.locked(Deadline(0.05)):
            pass
        assert refused.value.kind is ErrorKind.DEADLINE
    with other.locked(Deadline(60.0)):
        pass


@pytest.mark.parametrize(
    ("name", "until_seconds", "stopped", "start_is_right", "ended"),
    [
        ("gandiva-agent", -100.0, False, True, True),
        ("gandiva-agent", 100.0, True, True, True),
        ("gandiva-agent", 100.0, False, True, False),  # it is at work
        ("sleep", -100.0, False, True, False),  # the agent has ended, and its pid is a stranger's
        ("gandiva-agent", -100.0, False, False, False),  # another agent's
    ],
)
def test_only_an_agent_that_hangs_and_has_the_lock_is_ended(
    block: ControlBlock, name: str, until_seconds: float, stopped: bool, start_is_right: bool, ended: bool
) -> None:
    process = subprocess.Popen([name, "60"], executable=shutil.which("sleep"))
    processes = Processes(SlurmJobs("n1", lambda _job: None))
    try:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)  # in the middle of exec
        if stopped:
            process.send_signal(signal.SIGSTOP)
            while processes.halted(process.pid) is None:
                time.sleep(0.01)
        start = processes.start_time_ticks(process.pid)
        assert start is not None
        lock = block.path / "agent.lock"
        until = time.monotonic() + until_seconds
        lock.write_text(f"{process.pid} {start if start_is_right else start - 1} {until:015.3f}\n")
        with lock.open("rb+") as held, lock.open("rb+") as file:
            assert try_lock(held.fileno())
            assert control_block._end_hung_agent(file.fileno(), 12) is ended
        if ended:
            assert process.wait(timeout=60) == -signal.SIGKILL
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    finally:
        process.kill()
        process.wait()


def test_an_agent_that_holds_a_lock_says_which_process_it_is(block: ControlBlock) -> None:
    processes = Processes(SlurmJobs("n1", lambda _job: None))
    began = time.monotonic()
    with block.locked(Deadline(60.0)):
        pid, start, until = (block.path / "agent.lock").read_text().split()
    assert (int(pid), int(start)) == (os.getpid(), processes.start_time_ticks(os.getpid()))
    rounding = 0.001
    assert began + 60.0 - rounding <= float(until) <= time.monotonic() + 60.0 + rounding


def test_a_job_without_a_block_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as refused, ControlBlock(tmp_path, 12).locked(Deadline(60.0)):
        pass
    assert refused.value.kind is ErrorKind.UNKNOWN_JOB


@pytest.mark.parametrize(
    ("gpus", "binding", "obstacle", "text"),
    [
        ([2], [0, 2, 3], "no tool", "1\n"),
        ([2, 3], [3, 0, 2], "no tool", "1,2\n"),
        ([2], [0, 2, 3], "", "0\n"),  # the others are closed to it
        ([2, 3], [3, 0, 2], "", "0,1\n"),
        ([1], [1], "", None),
        ([0, 1], [1, 0], "no tool", None),
    ],
)
def test_visible_gives_positions_among_what_the_job_can_open(
    block: ControlBlock, gpus: list[int], binding: list[int], obstacle: str, text: str | None
) -> None:
    node = Node(AgentSettings("n1", block.path.parent, None), GpuReader(NvmlSource()), DriverProcesses())
    vars(node.confinement).update(_obstacle=obstacle, _looked_at=math.inf)
    block.write_visible([0])
    node.write_visible(block, gpus, binding)
    path = block.path / "visible"
    assert (path.read_text() if path.exists() else None) == text
