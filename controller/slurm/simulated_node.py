# SPDX-License-Identifier: GPL-2.0-or-later
"""Nodes of the simulated cluster, and its partitions."""

from collections.abc import Iterable, Sequence

from controller.slurm.port import SlurmGpu, SlurmNode
from controller.slurm.simulated_job import PARTITION


def idle_node(
    name: str,
    model: str = "a100",
    gpus: int = 1,
    switch: str = "",
    cpus: int = 64,
    memory_bytes: int = 2**40,
    shards: int = 16,
) -> SlurmNode:
    """A node that is up, without jobs."""
    return SlurmNode(
        name=name,
        gpus=tuple(SlurmGpu(i, model, shards) for i in range(gpus)),
        up=True,
        state="IDLE",
        reason="",
        cpus=cpus,
        memory_bytes=memory_bytes,
        memory_allocated_bytes=0,
        ordinary_gpus={},
        address=name,
        switch=switch,
        partitions={PARTITION: ""},
    )


def make_nodes(names: Iterable[str], gpus: int) -> list[SlurmNode]:
    return [idle_node(name, gpus=gpus) for name in names]


def in_one_partition(partition: str, nodes: Sequence[SlurmNode]) -> bool:
    """Whether all these nodes are in one of a job's partitions. `partition`: as in `SimulatedJob`."""
    known = [node.partitions for node in nodes if node.partitions is not None]
    return not partition or any(all(name in each for each in known) for name in partition.split(","))
