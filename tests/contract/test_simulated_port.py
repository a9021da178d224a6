# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the cluster port for the simulated adapter: what the simulation and the tests of the loop
rest on is what Slurm does (`tests/live/test_cluster_port.py` runs the same suite on a real one)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.cluster.port import ClusterPort, JobState
from controller.cluster.simulated import SlurmCosts, idle_node, make_nodes, request_text
from controller.model import GpuSet, JobId, Share
from tests.contract.adding_up import AddedUp
from tests.contract.cluster_port_contract import SharedClusterContract
from tests.contract.ordinary import submit_ordinary
from tests.contract.troubled import TroubledCluster

ENDLESS_SECONDS = 1e9


TREE = (
    Share("root", None, 1.0, 1.0),
    Share("vision", "root", 1.0, 0.5),
    Share("vision/alice", "vision", 1.0, 0.5, 0.25),
)


class SimulatedWorld:
    """A cluster in memory, on the real clock: short costs, so that states are passed through and seen."""

    def __init__(self, *, deltas: bool) -> None:
        self.cluster = TroubledCluster(
            {node.name: node for node in (*make_nodes(("n1", "n2"), 4), idle_node("n3", "v100", 4))},
            SlurmCosts(rpc_seconds=0.001, start_seconds=0.02, requeue_seconds=0.03),
            deltas=deltas,
            tree=TREE,
        )
        self.port: ClusterPort = AddedUp(self.cluster) if deltas else self.cluster
        self.nodes: Sequence[str] = ("n1", "n2")
        self.other_model = "n3"

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        assert not options, "sbatch's options are for real Slurm"
        return self.cluster.submit(request_text(gpus_per_node * nodes, nodes=nodes), ENDLESS_SECONDS)

    async def submit_short(self, exit_code: int) -> JobId:
        return self.cluster.submit(request_text(), 0.01, exit_code=exit_code)

    async def submit_ordinary(self, gpus: int) -> JobId:
        return submit_ordinary(self.cluster, "n2", gpus)

    async def allocated(self, job_id: JobId) -> GpuSet:
        job = self.cluster.jobs[job_id]
        assert job.state in (JobState.RUNNING, JobState.SUSPENDED)
        return job.binding

    async def hang(self) -> None:
        self.cluster.unavailable = True

    async def recover(self) -> None:
        self.cluster.unavailable = False


@pytest.fixture(params=["complete", "deltas"])
async def world(request: pytest.FixtureRequest) -> SimulatedWorld:
    return SimulatedWorld(deltas=request.param == "deltas")


class TestSimulatedPort(SharedClusterContract):
    """The third adapter keeps the contract, with complete views and with differences."""
