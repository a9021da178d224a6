# SPDX-License-Identifier: GPL-2.0-or-later
"""How full each node is: the working view that placement reads and fills while it plans.

Words of the Gandiva paper: M is the number of GPUs allocated on a node by running and suspended jobs
together, load is M/N, and a GPU is free while M < N.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.model import GpuSet, Job, JobId, Node, natural_key
from controller.policies.placement.refusal import refusal


@dataclass(slots=True)
class Server:
    """One node while a plan is being made."""

    node: Node
    usable: tuple[int, ...]
    """Ordinals of the GPUs that Gandiva jobs may use."""
    number: int = 0
    """Its place in the natural order of names."""
    usable_gpus: GpuSet = frozenset()
    allocated: int = 0
    """M: GPUs of all gangs assigned here, running or not."""
    fixed: Counter[int] = field(default_factory=Counter)
    """How many jobs are bound to exactly this ordinal."""
    occupied: Counter[int] = field(default_factory=Counter)
    """How many floating jobs are on each ordinal just now."""
    bound_jobs: Counter[int] = field(default_factory=Counter)
    """How many jobs hold a shard of each ordinal."""
    members: dict[JobId, int] = field(default_factory=dict)
    """GPUs of this node that each assigned job takes."""
    memory_free_bytes: int | None = None

    @property
    def free(self) -> int:
        """GPUs no job is assigned to; negative when over-subscribed."""
        return len(self.usable) - self.allocated

    @property
    def load(self) -> float:
        return self.allocated / len(self.usable) if self.usable else float("inf")

    def free_ordinals(self) -> list[int]:
        """Ordinals a new job can be bound to exactly, those that nothing runs on first."""
        return sorted((o for o in self.usable if not self.fixed[o]), key=lambda o: (self.occupied[o] > 0, o))

    def count(self, jobs: int, share: int, exact: Sequence[int], memory_bytes: int) -> None:
        """`jobs`: 1 counts a job in, -1 out again. `exact`: the ordinals that it is bound to; none where it
        floats."""
        self.allocated += jobs * share
        for ordinal in exact:
            self.fixed[ordinal] += jobs
        for ordinal in exact or self.usable:
            self.bound_jobs[ordinal] += jobs
        if self.memory_free_bytes is not None:
            self.memory_free_bytes -= jobs * memory_bytes


def empty_servers(nodes: Mapping[str, Node]) -> dict[str, Server]:
    """All nodes without jobs. Order: natural order of names."""
    servers = {}
    for number, name in enumerate(sorted(nodes, key=natural_key)):
        node = nodes[name]
        usable = [gpu.id for gpu in node.gpus if gpu.usable]
        servers[name] = Server(
            node=node,
            usable=tuple(gpu.ordinal for gpu in usable),
            number=number,
            usable_gpus=frozenset(usable),
            memory_free_bytes=node.memory_free_bytes,
        )
    return servers


def takes(job: Job, server: Server, share: int) -> bool:
    """Whether it could take `share` GPUs of this job some time, whatever runs there now."""
    return refusal(job, server.node, len(server.usable), share, server.memory_free_bytes) is None


def pick_ordinals(free: Sequence[int], count: int) -> list[int]:
    """`count` of the free ordinals (most wanted first), an aligned neighbourhood where there is one.

    GPUs 0-1, 2-3, 0-3, … share switches or NVLink bridges on common nodes, so an aligned block keeps
    a gang together and leaves whole blocks to others.
    """
    place = {ordinal: number for number, ordinal in enumerate(free)}
    starts = (range(ordinal, ordinal + count) for ordinal in free if ordinal % count == 0)
    blocks = [block for block in starts if place.keys() >= set(block)]
    if not blocks:
        return sorted(free[:count])
    return list(min(blocks, key=lambda block: max(place[ordinal] for ordinal in block)))
