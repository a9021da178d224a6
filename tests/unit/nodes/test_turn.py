# SPDX-License-Identifier: GPL-2.0-or-later
"""Which GPUs a job may open, as the agent writes it; the tool is a script here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.driver_process import DriverProcesses
from controller.agent import stopping, turn, verbs
from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.node import AgentSettings, Node
from controller.agent.turn import Confinement
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase

from .conftest import eventually

NODE = f"turn-{os.getpid()}"
"""No other test's processes are of its jobs."""


def deadline() -> Deadline:
    return Deadline(60.0)


class Bench:
    """A node with two devices in place of GPUs, and a tool that does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.tool = folder / "gandiva-confine"
        self.says("exit 0")
        devices = folder / "dev"
        devices.mkdir()
        (devices / "nvidia0").symlink_to("/dev/null")
        (devices / "nvidia1").symlink_to("/dev/zero")
        (folder / "cgroup.conf").write_text("ConstrainDevices=yes\n")
        self.node = Node(
            AgentSettings(NODE, folder / "run", None), GpuReader(NvmlSource()), DriverProcesses()
        )
        self.node.confinement = Confinement((self.tool,), (folder,), devices)

    def says(self, script: str) -> None:
        self.tool.write_text(f"#!/bin/sh\n{script}\n")
        self.tool.chmod(0o755)

    def job(self, number: int, phase: NodePhase, **state: Any) -> ControlBlock:
        """On GPU 0 of both."""
        block = self.node.blocks.block(number)
        block.create(os.getuid())
        place: dict[str, Any] = {"gpus": (0,), "binding": (0, 1), **state}
        block.save_state(JobState(job_id=number, uid=os.getuid(), phase=phase, **place))
        return block


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_job_that_was_to_be_resumed_can_open_no_gpu_that_another_gets(bench: Bench) -> None:
    """Its resume failed on another node, say, or the controller was killed."""
    block = bench.job(7, NodePhase.YIELDED)

    def opened() -> None:
        bench.node.turn(block, True, (0,), (0, 1), deadline())

    for gpus, ours, stays in (((0,), (8,), False), ((1,), (8,), True), ((0,), (8, 7), True)):
        opened()
        with bench.node.claiming(gpus, deadline(), ours):
            assert block.is_on() is stays
    block.save_state(JobState(job_id=7, uid=os.getuid(), phase=NodePhase.RUNNING, gpus=(0,)))
    opened()
    with bench.node.claiming((0,), deadline(), (8,)):
        assert block.is_on() is True


def test_no_device_is_closed_to_a_job_of_an_older_agent_before_its_next_switch(bench: Bench) -> None:
    """Its `visible` counts all GPUs of its binding: a new step would look for one that is closed."""
    block = bench.job(7, NodePhase.RUNNING)
    bench.node.adopt()
    assert (block.path / "turn").read_text() == "on\n"
    bench.node.turn(block, True, (0,), (0, 1), deadline())
    assert (block.path / "turn").read_text() == "on +1:3 -1:5\n"


def test_where_it_cannot_be_kept_to_them_no_device_is_said_to_be_closed(bench: Bench) -> None:
    block = bench.job(7, NodePhase.RUNNING)
    bench.node.turn(block, True, (0,), (0, 1), deadline())
    assert (block.path / "turn").read_text() == "on +1:3 -1:5\n"
    bench.says("exit 1")
    bench.node.confinement = Confinement((bench.tool,), (bench.tool.parent,), bench.tool.parent / "dev")
    bench.node.turn(block, True, (0,), (0, 1), deadline())
    assert (block.path / "turn").read_text() == "on +1:3\n"


def test_what_stands_in_the_way_is_looked_at_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool may be just replaced, or the machine too busy for it. What works is not asked again."""
    monkeypatch.setattr(turn, "AGAIN_SECONDS", 0.0)
    bench.tool.unlink()
    assert "is not installed" in bench.node.confinement.obstacle
    bench.says("echo busy >&2; exit 1")
    assert bench.node.confinement.obstacle == "busy"
    bench.says("exit 0")
    assert bench.node.confinement.obstacle == ""
    bench.says("exit 1")
    assert bench.node.confinement.obstacle == ""


def test_a_process_that_has_ended_needs_no_closing(bench: Bench) -> None:
    block = bench.job(7, NodePhase.RUNNING)
    assert bench.node.confinement.obstacle == ""
    bench.says("echo no such process >&2; exit 1")
    ended = subprocess.Popen(["true"])
    ended.wait()
    bench.node.confinement.apply(block, [ended.pid], deadline())
    with pytest.raises(AgentError, match="not kept to its GPUs: no such process"):
        bench.node.confinement.apply(block, [os.getpid()], deadline())


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": NODE}
    made = subprocess.Popen(["sleep", "600"], env=environ)
    yield made
    made.kill()
    made.wait()


def test_a_job_that_keeps_its_gpus_runs_on_whatever_the_tool_says(
    bench: Bench, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = bench.job(7, NodePhase.PAUSING, off=True)
    assert bench.node.confinement.obstacle == ""
    bench.says("exit 1")

    def still_there(*_: object) -> None:
        raise AgentError(ErrorKind.LEFT_ON_GPU, "it has memory there")

    monkeypatch.setattr(bench.node, "verify_gone", still_there)
    args = protocol.StopArgs(job_id=7, wait_seconds=60.0)
    with pytest.raises(AgentError, match="it has memory there"):
        stopping.stop(bench.node, args, deadline())
    eventually("it runs", lambda: bench.node.processes.halted(process.pid) is None)
    with bench.node.on_gpus(block, (0,), (0, 1), deadline(), new=False):
        pass
    with (
        pytest.raises(AgentError, match="not kept"),
        bench.node.on_gpus(block, (1,), (0, 1), deadline(), True),
    ):
        pass


def test_a_job_whose_step_is_still_ending_is_not_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmd refuses a second copy, and Slurm holds the job then as after a failed launch."""
    monkeypatch.setattr(bench.node, "require_free", lambda *_: None)
    monkeypatch.setattr(bench.node.processes, "is_here", lambda job_id: job_id == 7)
    for number in (8, 7):
        args = protocol.PrepareArgs(job_id=number, uid=os.getuid(), gpus=(0,), binding=(0,))
        if number == 7:
            with pytest.raises(AgentError, match="is here already"):
                verbs.prepare(bench.node, args, deadline())
        else:
            verbs.prepare(bench.node, args, deadline())
