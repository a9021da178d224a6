# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster's GPUs by type."""

from collections.abc import Collection, Mapping

from controller.model import GpuSet, Job, JobId, Node, Why
from controller.policies.mechanisms.rounds.kinds import is_scattered, scattered, type_of_kind
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.placement.free import Free
from controller.policies.placement.gangs import find, own_gpus, spreads
from controller.policies.placement.refusal import refusal


class Pools:
    """What is free of each type."""

    def __init__(self, nodes: Mapping[str, Node], members: Mapping[JobId, Member]) -> None:
        """`members`: all jobs; it follows what is observed."""
        self._members, self.gpus = members, Free(nodes)
        self.types = tuple(sorted({node.model for node in nodes.values() if node.gpus}))
        self._accepting: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Types by what matters of a job."""

    @property
    def closed(self) -> Collection[str]:
        """Nodes where nothing starts."""
        return self.gpus.closed

    def same(self, nodes: Mapping[str, Node], changed: frozenset[str]) -> bool:
        """Whether these nodes offer what they offered. If so, they are taken over."""
        if changed:
            self._accepting.clear()
        return all(self.gpus.same_gpus(name, nodes.get(name)) for name in changed)

    # -- what is free ---------------------------------------------------------------------------------

    def workers(self) -> dict[str, int]:
        """GPUs that jobs may start on, by type, free or not."""
        return {t: sum(s.usable.bit_count() for s in self.gpus.of_model(t)) for t in self.types}

    def free(self) -> dict[str, int]:
        """By type."""
        return {gpu_type: self.gpus.count[gpu_type] for gpu_type in self.types}

    def type_of(self, gpus: GpuSet) -> str:
        """By the first of them. Empty: none, or not known."""
        node = self.gpus.node(min(gpus).node) if gpus else None
        return node.model if node is not None else ""

    def find(self, job: Job, gpu_type: str) -> GpuSet | None:
        """GPUs of the type, or kind, for the job now; where Slurm has bound it, those that it is bound to."""
        if job.placement.allocation:
            return find(self.gpus, job)
        refused = self.gpus.refused
        if refused and self.sought(job, gpu_type) in refused:
            return None
        few, scattered = self._distinguishes(job, gpu_type), is_scattered(gpu_type)
        found = find(self.gpus, job, type_of_kind(gpu_type), consolidated=few, scattered=scattered)
        if found is None:
            refused.add(self.sought(job, gpu_type))
        return found

    def sought(self, job: Job, gpu_type: str) -> tuple[object, ...]:
        """All that `find` looks at of a job that Slurm has not bound: equal jobs find equal places."""
        return (gpu_type, self._distinguishes(job, gpu_type), self._members[job.id].shape)

    def _distinguishes(self, job: Job, gpu_type: str) -> bool:
        """Whether the type means as few nodes as the gang needs."""
        return scattered(gpu_type) in self._members[job.id].types

    def least_nodes(self, job: Job, gpu_type: str) -> int:
        """The fewest nodes of the type that the gang needs. 0: it can be spread in no other way."""
        counts = spreads(self.gpus, job, consolidated=False, model=gpu_type) if gpu_type else []
        return counts[0] if len(counts) > 1 else 0

    def only_closed(self, job: Job) -> bool:
        """Whether all GPUs that it has, or goes on with, are on nodes where nothing starts."""
        own = (job.placement.gpus or own_gpus(job)) if self.closed else ()
        return bool(own) and all(gpu.node in self.closed for gpu in own)

    def partly_closed(self, job: Job) -> bool:
        """Whether it goes on with a GPU on a node where nothing starts."""
        return any(gpu.node in self.closed for gpu in own_gpus(job))

    # -- what takes a job -----------------------------------------------------------------------------

    def accepting(self, member: Member) -> tuple[str, ...]:
        """Types with a node that could take the job, whatever runs there now."""
        found = self._accepting.get(member.shape)
        if found is None:
            accept = (gpu_type for gpu_type in self.types if self._accepts(member.job, gpu_type))
            found = self._accepting[member.shape] = tuple(accept)
        return found

    def _accepts(self, job: Job, gpu_type: str) -> bool:
        share, slots = self.gpus.spreads.least_share(job, gpu_type), self.gpus.of_model(gpu_type)
        fits = any(refusal(job, slot.node, slot.sound.bit_count(), share) is None for slot in slots)
        return fits and bool(self.gpus.spreads.of(job, gpu_type))

    def why_nowhere(self, job: Job) -> Why | None:
        """One sentence for a job that no node can take; None where one can."""
        return None if job.placement.allocation else self.gpus.why_nowhere(job)
