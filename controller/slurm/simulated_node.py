# SPDX-License-Identifier: GPL-2.0-or-later
"""Nodes of the simulated cluster."""

from collections.abc import Iterable

from controller.slurm.port import SlurmGpu, SlurmNode


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
    )


def make_nodes(names: Iterable[str], gpus: int) -> list[SlurmNode]:
    """Identical nodes."""
    return [idle_node(name, gpus=gpus) for name in names]
