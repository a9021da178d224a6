# SPDX-License-Identifier: GPL-2.0-or-later
"""Which jobs are bound to which nodes, or promised their GPUs, and what that leaves for others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from controller.model import Job, JobId, Node, Placement, by_node
from controller.policies.mechanisms.row import Row
from controller.policies.placement.fleet import Fleet, Place, settled_affinity


class Bindings:
    """The fleet with the jobs counted in, and which nodes are sliced together."""

    def __init__(
        self, nodes: Mapping[str, Node], affinity: Mapping[str, int], rows: Mapping[JobId, Row]
    ) -> None:
        self._rows = rows
        self.fleet = Fleet(nodes, affinity)
        self._spanning: dict[str, set[JobId]] = {}
        """Jobs that are bound to a node and to others."""
        self.changed = set(self.fleet.affinity)
        """Nodes where a job came, went or is not as it was, since turns were given last."""
        self.room = True
        """Somewhere there may be more room than when the queue was looked at last."""

    def recount(self, job: Job) -> None:
        """Host memory of a job that Slurm has bound is in what Slurm shows."""
        place = self.fleet.places.get(job.id)
        if place is not None and place.memory_bytes != _memory_bytes(job):
            self.fleet.count_out(job.id)
            self.fleet.count_in(job.id, replace(place, memory_bytes=_memory_bytes(job)))
            self.room = True

    def change(self, job_id: JobId, before: Placement, after: Placement) -> dict[str, int | None]:
        """A job is bound, unbound, or on other GPUs of its allocation. Returns affinities as they were."""
        if before.allocation == after.allocation:
            self._relocate(job_id, before, after)
            self.touch(after)
            return {}
        names = {gpu.node for gpu in before.allocation | after.allocation} & self.fleet.nodes.keys()
        was = {name: self.fleet.affinity.get(name) for name in names}
        self._bind(job_id, before, after)
        for gpu in after.allocation:
            if gpu.node in self.fleet.nodes and gpu.node not in self.fleet.affinity:
                self.fleet.set_affinity(gpu.node, self._rows[job_id].job.request.size.wanted)
                self.room = True  # jobs of its size can share the node from now on
        return was

    def restore(
        self, job_id: JobId, before: Placement, after: Placement, was: Mapping[str, int | None]
    ) -> None:
        if before.allocation == after.allocation:
            self.change(job_id, after, before)
            return
        self._bind(job_id, after, before)
        for name, size in was.items():
            self.fleet.set_affinity(name, size)

    def _relocate(self, job_id: JobId, before: Placement, after: Placement) -> None:
        """The job is on other GPUs of its allocation, or on another number of them."""
        known = self.fleet.places.get(job_id)
        if known is None or before.gpus == after.gpus:
            return
        place = self._place(job_id, after)
        if (place.share, place.exact) != (known.share, known.exact):
            self.fleet.count_out(job_id)
            self.fleet.count_in(job_id, place)
            self.room = True
        elif not place.exact:
            self.fleet.move(job_id, after.gpus)

    def _bind(self, job_id: JobId, before: Placement, after: Placement) -> None:
        if before.allocation:
            self._span(self.fleet.places[job_id].nodes, set.discard, job_id)
            self.fleet.count_out(job_id)
            self.room = True
        if after.allocation:
            self.fleet.count_in(job_id, self._place(job_id, after))
            self._span(self.fleet.places[job_id].nodes, set.add, job_id)
        self.touch(before)
        self.touch(after)

    def _span(self, nodes: Sequence[str], note: Callable[[set[JobId], JobId], None], job_id: JobId) -> None:
        for name in nodes if len(nodes) > 1 else ():
            note(self._spanning.setdefault(name, set()), job_id)

    def touch(self, placement: Placement) -> None:
        """Turns on these nodes are to be looked at."""
        self.changed.update(gpu.node for gpu in placement.allocation)

    def _gang(self, job_id: JobId, placement: Placement) -> int:
        """GPUs that the job uses with this placement, now or later."""
        job = self._rows[job_id].job
        if placement.gpus:
            return len(placement.gpus)
        if job.promised and placement.allocation == job.promised:
            return job.promised_size or job.request.size.wanted
        return job.gpus

    def _place(self, job_id: JobId, placement: Placement) -> Place:
        job, exact = self._rows[job_id].job, by_node(placement.allocation)
        gang = self._gang(job_id, placement)
        names, share = tuple(exact), gang // len(exact)
        if len(placement.allocation) > gang:
            return Place(names, share, {}, _memory_bytes(job), placement.gpus)
        return Place(names, share, exact, _memory_bytes(job))

    def settle_affinity(self) -> None:
        for name in self.changed & self.fleet.nodes.keys():
            members = self.fleet.nodes[name].members
            gangs = [(self._rows[i].job.request.size.wanted, share) for i, share in members.items()]
            if self.fleet.set_affinity(name, settled_affinity(self.fleet.affinity.get(name), gangs)):
                self.room = True

    def sliced_with(self, name: str) -> tuple[str, ...]:
        """The nodes that this one makes a lane with, itself included, in order: gangs span them."""
        names, left = {name}, [name]
        while left:
            spanning = self._spanning.get(left.pop(), ())
            found = {other for job_id in spanning for other in self.fleet.places[job_id].nodes} - names
            names |= found
            left += found
        return tuple(sorted(names))

    def jobs_on(self, names: Iterable[str]) -> list[JobId]:
        """Jobs bound to any of these nodes, in order."""
        return sorted({job_id for name in names for job_id in self.fleet.members[name]})


def _memory_bytes(job: Job) -> int:
    """Host memory per node that the job takes and Slurm does not show yet: it has not bound the job."""
    return 0 if job.placement.allocation else job.memory_per_node_bytes
