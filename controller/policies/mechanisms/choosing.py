# SPDX-License-Identifier: GPL-2.0-or-later
"""The GPUs of one node, or of nodes that a gang joins, given to jobs in order (SPEC 1.3).

Nodes that a gang spans are sliced together, so that its parts start and stop as one: they are one lane.

Feasibility is counting, not searching: a job bound to exact GPUs needs just these, and a floating job may
use any GPU of its one node, so a set of jobs fits if the exact ones do not overlap and every node has
enough GPUs left for the floating ones. The exception is a node with a floating job that is bound to a part
of the GPUs only, because the others were not usable when it started (an ordinary job had them, say): there a
matching of floating jobs and GPUs is looked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.model import GpuId, GpuSet, JobId, by_node, on_nodes
from controller.policies.placement.fleet_node import pick_ordinals


@dataclass(slots=True)
class Contender:
    """A job that competes for the GPUs of a lane."""

    job_id: JobId
    key: tuple[Any, ...]
    """Its place: its class first, then what the order says."""
    gpus: int
    allocation: GpuSet
    """What Slurm gave it, or will."""
    fixed: GpuSet = frozenset()
    """The GPUs it must have; empty for a job that floats on `node`."""
    node: str = ""
    last: GpuSet = frozenset()
    """Where a floating job is, or ran last."""
    running: bool = False
    pinned: bool = False
    """It keeps running whatever its place."""


class Slots:
    """The GPUs of a lane while they are given out."""

    __slots__ = ("_floating", "_left", "_nodes", "_partly", "_taken", "_usable")

    def __init__(self, usable: Mapping[str, GpuSet]) -> None:
        self._usable: set[GpuId] = set().union(*usable.values())
        self._taken: set[GpuId] = set()
        self._left = {name: len(gpus) for name, gpus in usable.items()}
        self._nodes = usable
        self._floating: dict[str, list[Contender]] = {}
        self._partly: set[str] = set()
        """Nodes where a floating job may not use all of the GPUs."""

    def fits(self, member: Contender) -> bool:
        """Whether this job can run besides those added so far."""
        fixed, left = member.fixed, self._left
        if not fixed:
            if left.get(member.node, 0) < member.gpus:
                return False
            return not (member.node in self._partly or _bound_to_a_part(member, self._nodes)) or self._match(
                member.node, [*self._floating.get(member.node, ()), member], self._taken
            )
        if not self._taken.isdisjoint(fixed) or not self._usable.issuperset(fixed):
            return False
        if any(left[name] < len(ordinals) for name, ordinals in by_node(fixed).items()):
            return False
        return not self._partly or all(
            self._match(node, self._floating[node], self._taken | fixed) for node in self._partly
        )

    def _match(self, node: str, floating: Sequence[Contender], taken: set[GpuId]) -> bool:
        """Whether all of these find GPUs that they may use."""
        owners: dict[GpuId, Contender] = {}
        free = self._nodes[node] - taken
        return all(_give(member, free, owners) for member in floating)

    def add(self, member: Contender) -> None:
        left = self._left
        if not member.fixed:
            left[member.node] = left.get(member.node, 0) - member.gpus
            self._floating.setdefault(member.node, []).append(member)
            if _bound_to_a_part(member, self._nodes):
                self._partly.add(member.node)
            return
        for gpu in member.fixed:
            if gpu in self._usable and gpu not in self._taken:
                left[gpu.node] -= 1
        self._taken |= member.fixed


def choose(members: Iterable[Contender], usable: Mapping[str, GpuSet], *, rotate: bool) -> list[Contender]:
    """The jobs that run next, in the order in which they were chosen.

    At a slice boundary (`rotate`) all take their turns by service received. In between, those that run go
    on before others of their class, and only GPUs that became free are given to the next in turn. Jobs that
    do not fit are skipped (backfill inside the node). `usable`: GPUs by node.
    """
    slots = Slots(usable)
    chosen: list[Contender] = []
    for member in sorted(members, key=lambda m: (not m.pinned, m.key[0], rotate or not m.running, m.key)):
        if slots.fits(member) or member.pinned:
            slots.add(member)
            chosen.append(member)
    return chosen


def _bound_to_a_part(member: Contender, usable: Mapping[str, GpuSet]) -> bool:
    """Whether a floating job may not use all GPUs of its node."""
    return bool(member.allocation) and not member.allocation.issuperset(usable.get(member.node, ()))


def _give(member: Contender, free: GpuSet, owners: dict[GpuId, Contender]) -> bool:
    """Give a floating job as many of the free GPUs as it needs beside the `owners`, who may have to take
    others for that. Whether there were enough."""
    return all(_give_one(member, free, owners, set()) for _ in range(member.gpus))


def _give_one(member: Contender, free: GpuSet, owners: dict[GpuId, Contender], tried: set[GpuId]) -> bool:
    # An augmenting path: no job loses a GPU without getting another one. A job without a binding may use all.
    allowed = free & member.allocation if member.allocation else free
    for gpu in sorted(allowed, key=lambda gpu: (gpu in owners, gpu not in member.last, gpu)):
        if gpu in tried:
            continue
        tried.add(gpu)
        owner = owners.get(gpu)
        if owner is member:
            continue
        if owner is None or _give_one(owner, free, owners, tried):
            owners[gpu] = member
            return True
    return False


def locate(chosen: Sequence[Contender], usable: Mapping[str, GpuSet]) -> dict[JobId, GpuSet]:
    """On which GPUs each chosen job runs.

    Exact jobs have no choice. A floating one stays where it is if it can; else it takes the GPUs that no job
    stays on, its last ones by preference.
    """
    located: dict[JobId, GpuSet] = {m.job_id: m.fixed for m in chosen if m.fixed}
    floating = [m for m in chosen if not m.fixed]
    if not floating:
        return located
    taken = {gpu for gpus in located.values() for gpu in gpus}
    for member in sorted(floating, key=lambda m: not m.running):
        last = member.last
        if (
            len(last) == member.gpus
            and taken.isdisjoint(last)
            and all(gpu in usable.get(gpu.node, frozenset()) for gpu in last)
        ):
            located[member.job_id] = last
            taken |= last
    partly = {member.node for member in floating if _bound_to_a_part(member, usable)}
    for node in partly:
        _locate_in_parts([m for m in floating if m.node == node], usable[node], located)
    for member in floating:
        if member.job_id not in located:
            free = sorted(gpu.ordinal for gpu in usable.get(member.node, ()) if gpu not in taken)
            located[member.job_id] = gpus = on_nodes((member.node,), pick_ordinals(free, member.gpus))
            taken |= gpus
    return located


def _locate_in_parts(floating: Sequence[Contender], usable: GpuSet, located: dict[JobId, GpuSet]) -> None:
    """Finds GPUs for the floating jobs of one node where some may not use all of them. Those that stay
    where they are move only if a job would get none otherwise."""
    here = {member.job_id for member in floating}
    elsewhere = {gpu for job_id, gpus in located.items() if job_id not in here for gpu in gpus}
    free = usable - elsewhere
    owners = {gpu: m for m in floating for gpu in located.get(m.job_id, ()) if gpu in free}
    for member in floating:
        if member.job_id not in located:
            _give(member, free, owners)
    for member in floating:
        located[member.job_id] = frozenset(gpu for gpu, owner in owners.items() if owner is member)
