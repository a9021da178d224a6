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
from dataclasses import dataclass

from controller.model import GpuId, GpuSet, JobId


@dataclass(slots=True)
class Member:
    """A job taking turns in a domain."""

    job_id: JobId
    priority_class: int
    arrival: tuple[float, int]
    """Submit time and job id, the last tie-break."""
    gpus: int
    received: float = 0.0
    """v: seconds on GPUs received, divided by the weight."""
    fixed: GpuSet = frozenset()
    """The GPUs it must have; empty for a job that floats on `server`."""
    server: str = ""
    last: GpuSet = frozenset()
    """Where a floating job is, or ran last."""
    running: bool = False
    pinned: bool = False
    """It keeps running whatever its turn: in transition, not suspendable, or its state is not known."""
    binding: GpuSet = frozenset()
    """What Slurm gave it, or will."""

    @property
    def turn(self) -> tuple[int, float, tuple[float, int]]:
        """Sort key: higher class first, then least service received."""
        return (-self.priority_class, self.received, self.arrival)


class Slots:
    """The GPUs of a domain while they are given out."""

    __slots__ = ("_left", "_taken", "_usable")

    def __init__(self, usable: Mapping[str, GpuSet]) -> None:
        self._usable: set[GpuId] = set().union(*usable.values())
        self._taken: set[GpuId] = set()
        self._left = {name: len(gpus) for name, gpus in usable.items()}

    def fits(self, member: Member) -> bool:
        """Whether this job can run besides those added so far."""
        fixed, left = member.fixed, self._left
        if not fixed:
            return left.get(member.server, 0) >= member.gpus
        if not self._taken.isdisjoint(fixed) or not self._usable.issuperset(fixed):
            return False
        if len(left) == 1:
            return left[next(iter(fixed)).node] >= len(fixed)
        need: dict[str, int] = {}
        for gpu in fixed:
            need[gpu.node] = need.get(gpu.node, 0) + 1
        return all(left[node] >= count for node, count in need.items())

    def add(self, member: Member) -> None:
        """Give it its GPUs."""
        left = self._left
        if not member.fixed:
            left[member.server] = left.get(member.server, 0) - member.gpus
            return
        for gpu in member.fixed:
            if gpu in self._usable and gpu not in self._taken:
                left[gpu.node] -= 1
        self._taken |= member.fixed


def choose(members: Iterable[Member], usable: Mapping[str, GpuSet], *, rotate: bool) -> list[Member]:
    """The jobs that run next, in the order in which they were chosen.

    At a slice boundary (`rotate`) all take their turns by service received. In between, those that run go
    on, and only GPUs that became free are given to the next in turn. Jobs that do not fit are skipped
    (backfill inside the server). `usable`: GPUs by server.
    """
    slots = Slots(usable)
    chosen: list[Member] = []
    ranked = sorted(
        [
            (not m.pinned, rotate or not m.running, -m.priority_class, m.received, m.arrival, m)
            for m in members
        ]
    )
    for *_, member in ranked:
        if slots.fits(member) or member.pinned:
            slots.add(member)
            chosen.append(member)
    return chosen


def locate(chosen: Sequence[Member], usable: Mapping[str, GpuSet]) -> dict[JobId, GpuSet]:
    """On which GPUs each chosen job runs.

    Exact jobs have no choice. A floating one stays where it is if it can; else it takes the GPUs nobody
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
    for member in floating:
        if member.job_id not in located:
            free = sorted(gpu for gpu in usable.get(member.server, frozenset()) if gpu not in taken)
            located[member.job_id] = gpus = frozenset(_block(free, member.gpus))
            taken |= gpus
    return located


def _block(free: Sequence[GpuId], count: int) -> Sequence[GpuId]:
    """An aligned run of ordinals where there is one, else the lowest free ones."""
    available = {gpu.ordinal: gpu for gpu in free}
    for start in sorted(available):
        block = range(start, start + count)
        if start % count == 0 and all(o in available for o in block):
            return [available[o] for o in block]
    return free[:count]
