# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the cluster port for trials that are steps of a real allocation: pytest runs this in a
batch job on two nodes with four GPUs each (tests/live/test_plain_cluster.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.cluster.simulated import request_text
from controller.cluster.steps import Steps
from controller.model import GpuSet, JobId
from tests.contract.cluster_port_contract import ClusterPortContract, until
from tests.contract.test_local_port import LocalWorld

LISTED = (
    'echo "$CUDA_VISIBLE_DEVICES" > "$0.$GANDIVA_TRIAL.$SLURM_RESTART_COUNT.$SLURM_PROCID"; exec sleep 600'
)
"""A trial that says what it has."""


class AllocationWorld(LocalWorld):
    """Each process says what it has in a file that all nodes see."""

    launcher = Steps

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        assert not options, "sbatch's options are for jobs"
        request = request_text(gpus_per_node * nodes, nodes=nodes)
        return self.run("sh", "-c", LISTED, str(self.folder / "has"), request=request)

    async def allocated(self, job_id: JobId) -> GpuSet:
        trial = self.cluster.trials[job_id]
        nodes = len({node for node, _ in trial.binding})

        async def look() -> list[str]:
            files = [self.folder / f"has.{job_id}.{trial.restarts}.{rank}" for rank in range(nodes)]
            texts = [file.read_text() if file.exists() else "" for file in files]
            return [name for text in texts for name in text.strip().split(",")] if all(texts) else []

        names = await until("what each of its processes has", look)
        return frozenset(gpu for gpu, name in self.uuids.items() if name in names)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    world = AllocationWorld(tmp_path)
    yield world
    await world.end()


class TestSteps(ClusterPortContract):
    """Steps keep the contract."""
