# SPDX-License-Identifier: GPL-2.0-or-later
"""How full each node is: the working view that placement reads and fills while it plans.

Words of the Gandiva paper: M is the number of GPUs allocated on a node by running and suspended jobs
together, load is M/N, and a GPU is free while M < N.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.model import Job, JobId, Node
from controller.policies.placement.refusal import refusal


class FleetNode:
    """One node while a plan is being made."""

    def __init__(self, number: int, offer: Node, members: Mapping[JobId, int]) -> None:
        """`number`: its place in the natural order of names. `offer`: as it was observed. `members`: GPUs of
        this node that each assigned job takes."""
        self.number, self.offer = number, offer
        self.usable_gpus = frozenset(gpu.id for gpu in offer.gpus if gpu.usable)
        """Those that Gandiva jobs may use."""
        self.usable = tuple(gpu.id.ordinal for gpu in offer.gpus if gpu.usable)
        """Their ordinals."""
        self.allocated = 0
        """M: GPUs of all gangs assigned here, running or not."""
        self.fixed = Counter[int]()
        """How many jobs are bound to exactly this ordinal."""
        self.occupied = Counter[int]()
        """How many floating jobs are on each ordinal just now."""
        self.bound_jobs = Counter[int]()
        """How many jobs hold a shard of each ordinal."""
        self.members = members
        self.memory_free_bytes = offer.memory_free_bytes

    @property
    def name(self) -> str:
        return self.offer.name

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

    def open_ordinals(self) -> set[int]:
        """Those that Slurm can bind one more job to."""
        cards = ((gpu.id.ordinal, gpu.shards) for gpu in self.offer.gpus if gpu.usable)
        return {ordinal for ordinal, shards in cards if self.bound_jobs[ordinal] < shards}

    def takes(self, job: Job, share: int) -> bool:
        """Whether it could take `share` GPUs of this job some time, whatever runs there now."""
        return refusal(job, self.offer, len(self.usable), share, self.memory_free_bytes) is None

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
