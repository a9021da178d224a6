# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the node port for agents: real ones, with training jobs on mock GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence

import pytest

from controller.model import JobId
from controller.nodes.connection import Channel, TransportError
from tests.contract.adding_up import Samples
from tests.contract.node_port_contract import NodePortContract
from tests.unit.halting import halt

from .conftest import NODE, Job, RecordingTransport, Rig

STEPS = ("--steps", "100000", "--minibatch-ms", "10", "--memory-mb", "64", "--state-kb", "8")


class AgentSite:
    """A node with an agent. Slurm's part, freezing and thawing, is done with signals."""

    node = NODE
    uid = os.getuid()

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._jobs: dict[JobId, Job] = {}
        self._submitted = 1
        self.port = rig.nodes()
        self.samples = Samples(self.port)

    async def submit(self) -> JobId:
        self._submitted += 1
        return JobId(self._submitted)

    async def start(self, job_id: JobId, binding: Sequence[int], *, store: bool = False) -> None:
        visible = self._rig.run_dir / str(job_id) / "visible"
        places = map(int, visible.read_text().split(",")) if visible.exists() else range(len(binding))
        gpus = [str(binding[place]) for place in places]
        job = self._rig.start(
            job_id,
            *(*STEPS, "--gpus", str(len(gpus))),
            *(("--store", str(self._rig.folder / f"store-{job_id}")) if store else ()),
            gpus=",".join(gpus),
            binding=",".join(map(str, binding)),
        )
        self._jobs[job_id] = job
        self._rig.wait_for_steps(job, 2)

    async def freeze(self, job_id: JobId) -> None:
        for process in self._jobs[job_id].processes:
            halt(process.pid)

    async def thaw(self, job_id: JobId) -> None:
        self._send(job_id, signal.SIGCONT)

    async def end(self, job_id: JobId) -> None:
        self._jobs[job_id].kill()

    async def cut(self) -> None:
        assert isinstance(self._rig.transport, Cut)
        self._rig.transport.cut()

    def _send(self, job_id: JobId, number: signal.Signals) -> None:
        for process in self._jobs[job_id].processes:
            process.send_signal(number)


class Cut(RecordingTransport):
    """A way to agents that can be cut."""

    connected = True

    def connect(self, node: str, address: str) -> Channel:
        if not self.connected:
            raise TransportError("no route to host")
        return super().connect(node, address)

    def cut(self) -> None:
        self.connected = False
        for channel in self.channels:
            channel.close()


@pytest.fixture
async def site(rig: Rig) -> AsyncIterator[AgentSite]:
    rig.transport = Cut(["--run-dir", str(rig.run_dir), "--gpustat-dir", str(rig.gpustat)], rig.environ)
    made = AgentSite(rig)
    await made.port.set_nodes({NODE: "here"})
    yield made
    await made.port.close()


class TestAgents(NodePortContract):
    """Agents keep the contract."""
