# SPDX-License-Identifier: GPL-2.0-or-later
"""A user mounts a file system that never answers over `ranks/`, or over a file in it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from controller.agent.control_block import ControlBlock, ControlBlocks
from controller.agent.identity import SlurmJobs
from controller.agent.processes import Processes
from controller.agent.rank_files import read_ranks
from controller.model import JobId
from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes
from gandiva.layout import Verb

from .conftest import NODE, Rig, sample

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse")


@contextmanager
def silent_fuse(target: Path, *, unmount: bool = True) -> Iterator[None]:
    """As `fusermount -o allow_other` mounts it for any user where user_allow_other is set, with a server that
    reads no request. When the device is closed, calls that wait for it fail."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    mode = "40000" if target.is_dir() else "100000"
    options = f"fd={device},rootmode={mode},user_id=0,group_id=0,allow_other".encode()
    try:
        if libc.mount(b"mine", os.fsencode(target), b"fuse", 0, options) != 0:
            pytest.skip(f"cannot mount: {errno.errorcode[ctypes.get_errno()]}")
        yield
    finally:
        os.close(device)
        if unmount:
            libc.umount2(os.fsencode(target), 2)


def soon(call: Callable[[], T]) -> T:
    """Its answer. A call that hangs is left behind in its thread."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert answers, f"no answer within {PATIENCE_SECONDS:g} s"
    return answers[0]


@pytest.fixture(params=["a file system of its own", "a plain folder"])
def block(request: pytest.FixtureRequest, mountable: Path) -> Iterator[ControlBlock]:
    blocks = ControlBlocks(mountable / "run")
    made = blocks.block(7)
    if request.param == "a plain folder":
        made.ranks.mkdir(parents=True)
        made.write_command(Verb.RUN, 0)
        os.chown(made.ranks, 1234, -1)
    else:
        made.create(1234)
    yield made


def ranks_of(block: ControlBlock) -> Callable[[], tuple[str, ...]]:
    processes = Processes(SlurmJobs(NODE, lambda _job: 1234))
    return lambda: read_ranks(block.ranks, 1234, block.job_id, processes).problems


def test_nobody_waits_for_what_is_mounted_over_the_folder(block: ControlBlock) -> None:
    with silent_fuse(block.ranks):
        (problem,) = soon(ranks_of(block))
        assert "mounted over" in problem
        assert soon(block.uid) is None  # it was written down nowhere else
    with silent_fuse(block.ranks, unmount=False):
        soon(lambda: [block.clear_ranks(1234)])  # type: ignore[func-returns-value]
    assert soon(block.uid) == 1234
    assert soon(ranks_of(block)) == ()


def test_nobody_waits_for_what_is_mounted_over_a_rank(block: ControlBlock) -> None:
    rank = block.ranks / "0"
    rank.touch()
    with silent_fuse(rank):
        (problem,) = soon(ranks_of(block))
        assert "rank 0" in problem and "mounted over" in problem


@pytest.mark.usefixtures("mountable")
def test_the_agent_tells_of_all_jobs_beside_one_that_hides_its_ranks(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        for job_id, gpu in ((2, 0), (3, 1)):
            await nodes.prepare(
                NODE,
                JobId(job_id),
                uid=os.getuid(),
                gpus=[gpu],
                binding=[gpu],
                deadline_seconds=60.0,
            )
        with silent_fuse(rig.run_dir / "2" / "ranks"):
            jobs = (await sample(nodes)).jobs
            assert {int(job_id): job.phase for job_id, job in jobs.items()} == {
                2: NodePhase.RUNNING,
                3: NodePhase.RUNNING,
            }
            assert "mounted over" in jobs[JobId(2)].error

    rig.run(scenario)
