# SPDX-License-Identifier: GPL-2.0-or-later
"""Nodes and GPUs as Slurm and the agents report them."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, NewType

from controller.model.value import value

JobId = NewType("JobId", int)

GPU_MODEL = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
"""A pattern: the GPU types of sites, as Slurm and its commands read them in one piece."""


class GpuId(NamedTuple):
    """One physical GPU: its Slurm node and its minor number there, the N of /dev/nvidiaN. A tuple has a
    method called `index`, hence `ordinal`."""

    node: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.node}:{self.ordinal}"


GpuSet = frozenset[GpuId]


@value(kw_only=True)
class Gpu:
    """One GPU."""

    id: GpuId
    model: str
    memory_bytes: int = 0
    healthy: bool = True
    """False also where its node did not say what is on it."""
    reason: str = ""
    """Why it is not healthy, as text; empty: it is, or that was not said."""
    ordinary_job: JobId | None = None
    """The ordinary job, without Gandiva, that Slurm gave this GPU exclusively."""
    shards: int = 0
    """How many Gandiva jobs Slurm can bind to this GPU at once."""
    left_by: tuple[tuple[JobId, int], ...] = ()
    """Bytes that jobs which are off this GPU have left on it, such as a CUDA context."""

    def left_bytes(self, job_id: JobId | None = None) -> int:
        """What other jobs than this one have left on it."""
        return sum(size for by, size in self.left_by if by != job_id)

    @property
    def usable(self) -> bool:
        """A Gandiva job may use it: healthy, no ordinary job on it."""
        return self.healthy and self.ordinary_job is None


@value(kw_only=True)
class Node:
    """A GPU node."""

    name: str
    gpus: tuple[Gpu, ...]
    available: bool = True
    """False: Slurm would start nothing here, or the agent does not answer."""
    reason: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int | None = None
    """Host memory that Slurm has not allocated yet. None: not tracked."""
    switch: str = ""
    partitions: Mapping[str, str] | None = None
    """Slurm's partitions that it is in, each with the reason why no job of it starts; empty: they do. None:
    not known."""
    unconfined: str = ""
    """Why it cannot keep jobs off GPUs that are not theirs now, so that none floats there; empty: it can."""

    @property
    def model(self) -> str:
        """Of its GPUs: all have one, since Slurm's GRES name it. Empty: it has none."""
        return self.gpus[0].model if self.gpus else ""


def gpu_type(gpus: GpuSet, nodes: Mapping[str, Node]) -> str:
    """The model of these GPUs, by the first of them; empty where that is not known."""
    first = min(gpus, default=None)
    node = nodes.get(first.node) if first is not None else None
    return next((gpu.model for gpu in node.gpus if gpu.id == first), "") if node is not None else ""


@lru_cache(maxsize=4096)
def by_node(gpus: GpuSet) -> Mapping[str, tuple[int, ...]]:
    """Ordinals per node, sorted."""
    nodes: dict[str, list[int]] = {}
    for node, ordinal in sorted(gpus):
        nodes.setdefault(node, []).append(ordinal)
    return MappingProxyType({node: tuple(ordinals) for node, ordinals in nodes.items()})


def on_nodes(nodes: Iterable[str], ordinals: Iterable[int]) -> GpuSet:
    """The same ordinals on each node."""
    wanted = tuple(ordinals)
    return frozenset(GpuId(node, ordinal) for node in nodes for ordinal in wanted)


@lru_cache(maxsize=20_000)
def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts n2 before n10."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)
