# SPDX-License-Identifier: GPL-2.0-or-later
"""Weighted fair slicing: which of the jobs assigned to a server run during the next slice (SPEC 1.3).

Servers that a gang spans are sliced together, so that its parts start and stop as one. A *domain* is such a
set of servers; usually it is one server.

Feasibility is counting, not searching: a job bound to exact GPUs needs just these, and a floating job may
use any GPU of its one server, so a set of jobs fits if the exact ones do not overlap and every server has
enough GPUs left for the floating ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.model import GpuId, GpuSet, JobId


@dataclass(frozen=True, slots=True)
class Member:
    """A job taking turns in a domain."""

    job_id: JobId
    priority_class: int
    service_slices: float
    """v: slices received, divided by the weight."""
    arrival: tuple[float, int]
    """Submit time and job id, the last tie-break."""
    gpus: int
    fixed: GpuSet = frozenset()
    """The GPUs it must have; empty for a job that floats on `server`."""
    server: str = ""
    last: GpuSet = frozenset()
    """Where a floating job is, or ran last."""
    running: bool = False
    pinned: bool = False
    """It keeps running whatever its turn: in transition, not suspendable, or its state is not known."""

    @property
    def turn(self) -> tuple[int, float, tuple[float, int]]:
        """Sort key: higher class first, then least service received."""
        return (-self.priority_class, self.service_slices, self.arrival)


@dataclass(slots=True)
class Slots:
    """The GPUs of a domain while they are given out."""

    usable: Mapping[str, frozenset[int]]
    """Ordinals per server."""
    taken: set[GpuId] = field(default_factory=set)
    exact: dict[str, int] = field(default_factory=dict)
    """How many usable GPUs of each server are in `taken`."""
    floating: dict[str, int] = field(default_factory=dict)
    """GPUs set aside per server for floating jobs chosen so far."""

    def fits(self, member: Member) -> bool:
        """Whether this job can run besides those added so far."""
        if not member.fixed:
            return self._left(member.server) >= member.gpus
        if not self.taken.isdisjoint(member.fixed):
            return False
        need: dict[str, int] = {}
        for gpu in member.fixed:
            if gpu.ordinal not in self.usable.get(gpu.node, frozenset()):
                return False
            need[gpu.node] = need.get(gpu.node, 0) + 1
        return all(self._left(node) >= count for node, count in need.items())

    def add(self, member: Member) -> None:
        """Give it its GPUs."""
        if member.fixed:
            for gpu in member.fixed - self.taken:
                if gpu.ordinal in self.usable.get(gpu.node, ()):
                    self.exact[gpu.node] = self.exact.get(gpu.node, 0) + 1
            self.taken |= member.fixed
        else:
            self.floating[member.server] = self.floating.get(member.server, 0) + member.gpus

    def _left(self, server: str) -> int:
        return len(self.usable.get(server, ())) - self.exact.get(server, 0) - self.floating.get(server, 0)


def choose(members: Iterable[Member], usable: Mapping[str, frozenset[int]], *, rotate: bool) -> list[Member]:
    """The jobs that run next, in the order in which they were chosen.

    At a slice boundary (`rotate`) all take their turns by service received. In between, those that run go
    on, and only GPUs that became free are given to the next in turn. Jobs that do not fit are skipped
    (backfill inside the server).
    """
    slots = Slots(usable)
    chosen: list[Member] = []

    def rank(member: Member) -> tuple[bool, bool, tuple[int, float, tuple[float, int]]]:
        return (not member.pinned, not (member.running and not rotate), member.turn)

    for member in sorted(members, key=rank):
        if slots.fits(member) or member.pinned:
            slots.add(member)
            chosen.append(member)
    return chosen


def locate(chosen: Sequence[Member], usable: Mapping[str, frozenset[int]]) -> dict[JobId, GpuSet]:
    """On which GPUs each chosen job runs.

    Exact jobs have no choice. A floating one stays where it is if it can; else it takes the GPUs nobody
    stays on, its last ones by preference.
    """
    located: dict[JobId, GpuSet] = {m.job_id: m.fixed for m in chosen if m.fixed}
    taken = {gpu for gpus in located.values() for gpu in gpus}
    floating = [m for m in chosen if not m.fixed]
    for member in sorted(floating, key=lambda m: not m.running):
        if len(member.last) == member.gpus and taken.isdisjoint(member.last) and _usable(member.last, usable):
            located[member.job_id] = member.last
            taken |= member.last
    for member in floating:
        if member.job_id in located:
            continue
        ordinals = sorted(usable.get(member.server, frozenset()))
        free = [GpuId(member.server, o) for o in ordinals if GpuId(member.server, o) not in taken]
        gpus = frozenset(_block(free, member.gpus))
        located[member.job_id] = gpus
        taken |= gpus
    return located


def _usable(gpus: GpuSet, usable: Mapping[str, frozenset[int]]) -> bool:
    return all(gpu.ordinal in usable.get(gpu.node, frozenset()) for gpu in gpus)


def _block(free: Sequence[GpuId], count: int) -> Sequence[GpuId]:
    """An aligned run of ordinals where there is one, else the lowest free ones."""
    available = {gpu.ordinal: gpu for gpu in free}
    for start in sorted(available):
        block = range(start, start + count)
        if start % count == 0 and all(o in available for o in block):
            return [available[o] for o in block]
    return free[:count]


def domains(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Merge sets of servers that overlap. Disjoint result, in the order of their smallest member.

    Cost: linear in the number of names (union-find).
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for group in groups:
        first, *others = sorted(group)
        for other in others:
            parent[root(other)] = root(first)
        root(first)
    merged: dict[str, set[str]] = {}
    for name in parent:
        merged.setdefault(root(name), set()).add(name)
    return sorted((frozenset(m) for m in merged.values()), key=min)
