# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job may keep on a GPU while it is off it is allowed at no other time."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, ProcessReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.nodes.protocol import AgentError, NodePhase

from .conftest import MIB, NODE


def test_a_job_at_work_is_allowed_nothing_on_gpus_that_others_get(tmp_path: Path) -> None:
    """It may have a process on a GPU that is not its own; what it left somewhere once is no excuse."""
    source, processes = MagicMock(), MagicMock()
    listed = (ProcessReading(50, 300 * MIB),)
    source.read.return_value = Reading(
        "580.0", (GpuReading(1, "GPU-1", "a100", 80 << 30, 300 * MIB, 0.0, True, listed=listed),)
    )
    processes.job_of.return_value, processes.calls_the_driver.return_value = 5, False
    node = Node(AgentSettings(NODE, tmp_path, None), GpuReader(source), MagicMock())
    node.processes = processes
    block = node.blocks.block(5)
    block.create(os.getuid())
    state = JobState(job_id=5, uid=os.getuid(), gpus=(0,), residual_bytes=400 * MIB)
    for phase in (NodePhase.RUNNING, NodePhase.PAUSING):
        block.change(state, phase=phase)
        with pytest.raises(AgentError, match="process 50 of job 5 holds 300 MiB on GPU 1"):
            node.require_free((1,), 7, Deadline(30.0))
    block.change(state, phase=NodePhase.YIELDED)
    node.require_free((1,), 7, Deadline(30.0))
