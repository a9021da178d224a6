# SPDX-License-Identifier: GPL-2.0-or-later
"""NVML lists processes that have no memory on a GPU: they have called cuInit, no more."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.nodes.protocol import AgentError, ErrorKind
from controller.nodes.remote import RemoteNodes

from .conftest import MIB, NODE, ROOT, Rig, eventually, sample
from .test_yield_and_resume import QUICK, checkpoint, offload, prepare, resume

LAUNCHER = """
import sys, time
from pathlib import Path
import mockcuda
mockcuda.init()
Path(sys.argv[1]).write_text("ready")
time.sleep(60)
"""


@pytest.fixture
def listing(rig: Rig) -> Rig:
    """A node whose driver lists them, as some do."""
    rig.mockgpu("init", "--gpus", "4", "--node", NODE, "--jobs", "environment", "--init-only", "listed")
    return rig


def driver_children(rig: Rig) -> list[int]:
    agent = rig.transport.channels[-1].pid  # type: ignore[attr-defined]
    pids = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for thread in Path(f"/proc/{agent}/task").iterdir():
        pids += (thread / "children").read_text().split()
    return sorted(
        {int(pid) for pid in pids if b"driver_process" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    )


def test_the_processes_by_which_the_agent_calls_the_driver_are_in_nobodys_way(listing: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = listing.start(2, *QUICK, "--steps", "100000", "--no-step", gpus="0")
        listing.wait_for_steps(job, 2)
        await checkpoint(nodes, 2)
        assert driver_children(listing)
        assert [process.job_id for process in (await sample(nodes)).gpus[0].processes] == []
        await prepare(nodes, 3, [0], [0])
        await nodes.forget(NODE, 3)  # type: ignore[arg-type]
        await resume(nodes, 2, [0], [0])

    listing.run(scenario)


def test_a_launcher_that_has_only_counted_the_gpus_does_not_keep_its_job_there(listing: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = listing.start(2, *QUICK, "--steps", "100000", gpus="0")
        listing.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'examples'}"
        ready = listing.folder / "ready"
        listing.start_other(2, sys.executable, "-c", LAUNCHER, str(ready))
        eventually("the launcher", ready.exists)
        listing.wait_for_steps(job, 2)
        assert await offload(nodes, 2) == 0

    listing.run(scenario)


def test_the_driver_is_ready_before_it_is_needed(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await sample(nodes)
        eventually("a process that can call the driver", lambda: driver_children(rig))

    rig.run(scenario)


def test_what_is_free_is_what_nvml_says_is_free(tmp_path: Path) -> None:
    """Not total less used: the driver keeps some for itself, and a restore short of memory kills the job."""
    gpu = GpuReading(0, "GPU-0", "a100", 1000 * MIB, 100 * MIB, 0.0, True, memory_free_bytes=700 * MIB)
    source = MagicMock()
    source.read.return_value = Reading("580.0", (gpu,))
    node = Node(AgentSettings(NODE, tmp_path, None), GpuReader(source), MagicMock())
    node.require_free([0], 7, Deadline(60.0), needed={0: 700 * MIB})
    with pytest.raises(AgentError, match="GPU 0 has 700 MiB free, job 7 needs 800 MiB") as refused:
        node.require_free([0], 7, Deadline(60.0), needed={0: 800 * MIB})
    assert refused.value.kind is ErrorKind.GPU_BUSY
