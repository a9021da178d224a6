# SPDX-License-Identifier: GPL-2.0-or-later
"""What jobs that share GPUs may take of their memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from controller.agent import shares
from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.model import JobId
from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes
from gandiva import layout

from .conftest import CONTEXT_BYTES, MIB, NODE, Rig, sample
from .test_packing import HELD_BYTES, STEPS, start_both
from .test_yield_and_resume import offload, prepare, resume

GIB = 1024 * MIB
USABLE_BYTES = 80 * GIB
"""Of each mock GPU."""

Tell = Callable[..., dict[int, int]]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Have jobs of these notes told their limits: GiB by job."""
    source = MagicMock()
    # The driver keeps 1 GiB for itself.
    gpus = tuple(
        GpuReading(index, f"GPU-{index}", "a100", 81 * GIB, 50 * GIB, 0.0, True, memory_free_bytes=30 * GIB)
        for index in range(2)
    )
    source.read.return_value = Reading("580.0", gpus)
    node = Node(AgentSettings(NODE, tmp_path, None), GpuReader(source), MagicMock())
    node.reader.read(Deadline(30.0))

    def told(*states: JobState) -> dict[int, int]:
        for state in states:
            block = node.blocks.block(state.job_id)
            block.create(state.uid)
            block.save_state(state)
        shares.tell(node, node.blocks.states())
        commands = {state.job_id: node.blocks.block(state.job_id).read_command() for state in states}
        return {job_id: c.memory_limit_bytes // GIB for job_id, c in commands.items() if c is not None}

    return told


def a_job(job_id: int, peak_gib: int, *beside: int, **more: object) -> JobState:
    base = JobState(job_id=job_id, uid=os.getuid(), gpus=(0,), beside=beside, peak_bytes=peak_gib * GIB)
    return base.but(**more)


def test_a_job_may_take_what_the_other_never_had(tell: Tell) -> None:
    assert tell(a_job(2, 30), a_job(3, 10, 2)) == {2: 70, 3: 50}
    assert tell(a_job(2, 30), a_job(3, 0, 2)) == {2: 80, 3: 50}, "it has just been let there"


def test_no_job_is_refused_what_it_had_alone(tell: Tell) -> None:
    assert tell(a_job(2, 60), a_job(3, 40, 2)) == {2: 60, 3: 40}


def test_a_limit_of_nothing_is_not_without_limit(tell: Tell, tmp_path: Path) -> None:
    tell(a_job(2, 80), a_job(3, 0, 2))
    command = layout.parse_command((tmp_path / "3" / "command").read_bytes())
    assert command is not None and command.memory_limit_bytes == 1


def test_what_suspended_jobs_have_left_there_is_nobodys(tell: Tell) -> None:
    left = {"phase": NodePhase.YIELDED, "left_on": {0: 2 * GIB, 1: 9 * GIB}}
    assert tell(a_job(2, 30), a_job(3, 10, 2), a_job(4, 70, **left)) == {2: 68, 3: 48, 4: 0}


def test_alone_there_is_no_limit(tell: Tell) -> None:
    off = {"phase": NodePhase.YIELDED, "left_on": {0: 2 * GIB}}
    assert tell(a_job(2, 30), a_job(3, 10, 2)) == {2: 70, 3: 50}
    assert tell(a_job(2, 30), a_job(3, 10, 2, **off)) == {2: 0, 3: 0}
    assert tell(a_job(2, 30), a_job(3, 10, 2, gpus=(1,))) == {2: 0, 3: 0}
    assert tell(a_job(2, 30), a_job(3, 10)) == {2: 0, 3: 0}, "a job that has ended, and is not forgotten yet"


def test_of_several_gpus_the_fullest_counts(tell: Tell) -> None:
    both = {"gpus": (0, 1)}
    assert tell(a_job(2, 30, **both), a_job(3, 10, 2), a_job(4, 20, 2, gpus=(1,))) == {2: 60, 3: 50, 4: 50}


def test_a_job_under_way_to_or_from_its_gpus_is_there(tell: Tell) -> None:
    pausing = {"phase": NodePhase.PAUSING}
    assert tell(a_job(2, 30, **pausing), a_job(3, 10, 2)) == {2: 70, 3: 50}


def limit(rig: Rig, job_id: int) -> int:
    """As the job's sessions read it."""
    command = layout.parse_command((rig.run_dir / str(job_id) / "command").read_bytes())
    assert command is not None
    return command.memory_limit_bytes


def test_limits_follow_what_is_seen(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        first, second = await start_both(rig, nodes, "--steps", "2000")
        await sample(nodes)
        assert [limit(rig, job) for job in (2, 3)] == [USABLE_BYTES - HELD_BYTES] * 2
        await offload(nodes, 3)
        await sample(nodes)
        assert (await sample(nodes)).jobs[JobId(3)].phase is NodePhase.YIELDED
        assert [limit(rig, job) for job in (2, 3)] == [0, 0]
        # What it had before counts at once, before it is back.
        await resume(nodes, 3, [0], [0], beside=(2,))
        assert [limit(rig, job) for job in (2, 3)] == [USABLE_BYTES - HELD_BYTES] * 2
        second.kill()
        await nodes.forget(NODE, JobId(3))
        await sample(nodes)
        assert limit(rig, 2) == 0
        first.kill()

    rig.run(scenario)


def test_a_guest_has_its_limit_before_it_starts(rig: Rig) -> None:
    """From the host's peak, which another agent saw."""

    async def look(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *STEPS, "--steps", "2000", gpus="0", binding="0")
        rig.wait_for_steps(job, 3)
        await sample(nodes)
        await offload(nodes, 2)
        await sample(nodes)

    async def scenario(nodes: RemoteNodes) -> None:
        await resume(nodes, 2, [0], [0])
        await prepare(nodes, 3, [0], [0], beside=(2,))
        assert limit(rig, 3) == USABLE_BYTES - 4096 * MIB - CONTEXT_BYTES
        assert limit(rig, 2) == USABLE_BYTES, "of the guest nothing was seen yet"
        # Prepared anew, alone.
        await prepare(nodes, 3, [1], [1])
        assert limit(rig, 3) == 0

    rig.run(look)
    rig.run(scenario)
