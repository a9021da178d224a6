# SPDX-License-Identifier: GPL-2.0-or-later
"""A resume that ends in the middle of putting a job back."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from controller.agent import returning
from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.agent.processes import ProcessId
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase, ResumeArgs

from .conftest import NODE


def test_gpus_are_the_jobs_before_anything_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML shows nothing yet, and the next agent must not give them to another job."""
    source, processes = MagicMock(), MagicMock()
    source.read.return_value = Reading(
        "580.0", tuple(GpuReading(index, f"GPU-{index}", "a100", 80 << 30, 0, 0.0, True) for index in (0, 1))
    )
    processes.of_job.return_value, processes.halted.return_value = (ProcessId(50, 1),), None
    node = Node(AgentSettings(NODE, tmp_path, None), GpuReader(source), MagicMock())
    node.processes = processes
    block = node.blocks.block(5)
    block.create(os.getuid())
    block.save_state(
        JobState(job_id=5, uid=os.getuid(), phase=NodePhase.YIELDED, off=True, gpus=(0,), movable=True)
    )
    monkeypatch.setattr(
        returning, "_restore", MagicMock(side_effect=AgentError(ErrorKind.DEADLINE, "cut off"))
    )
    args = ResumeArgs(job_id=5, gpus=(1,), binding=(0, 1), deadline_seconds=60.0)
    with pytest.raises(AgentError, match="cut off"):
        returning.resume(node, args, Deadline(60.0))
    with pytest.raises(AgentError, match="job 5 is pausing on GPU 1"):
        node.require_free((1,), 7, Deadline(60.0))
    node.require_free((0,), 7, Deadline(60.0))
