# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the node port for the simulated adapter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.cluster.simulated import make_nodes, request_text
from controller.model import GpuId, JobId
from controller.nodes.port import NodePort
from controller.nodes.simulated import NodeCosts
from tests.contract.adding_up import Samples
from tests.contract.node_port_contract import NodePortContract
from tests.contract.troubled import TroubledCluster, TroubledNodes


class SimulatedSite:
    """A node in memory, on the real clock."""

    node = "n1"
    uid = 2001

    def __init__(self, *, deltas: bool) -> None:
        self.cluster = TroubledCluster({node.name: node for node in make_nodes(("n1",), 4)})
        self.nodes = TroubledNodes(self.cluster, NodeCosts(0.01, 0.01, 0.01), deltas=deltas)
        self.port: NodePort = self.nodes
        self.samples = Samples(self.port)

    async def submit(self) -> JobId:
        return self.cluster.submit(request_text(), 1e9)

    async def start(self, job_id: JobId, binding: Sequence[int], *, store: bool = False) -> None:
        if store:
            self.nodes.storing.add(job_id)
        await self.cluster.bind(job_id, frozenset(GpuId("n1", ordinal) for ordinal in binding))
        await self.cluster.release(job_id)

    async def freeze(self, job_id: JobId) -> None:
        await self.cluster.suspend(job_id)

    async def thaw(self, job_id: JobId) -> None:
        await self.cluster.resume(job_id)

    async def end(self, job_id: JobId) -> None:
        await self.cluster.end(job_id, "no reason")

    async def cut(self) -> None:
        self.nodes.unreachable.add("n1")


@pytest.fixture(params=["all nodes", "deltas"])
async def site(request: pytest.FixtureRequest) -> SimulatedSite:
    return SimulatedSite(deltas=request.param == "deltas")


class TestSimulatedNodes(NodePortContract):
    """The adapter of the simulation keeps the contract, whether it leaves nodes out or not."""
