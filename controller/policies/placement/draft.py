# SPDX-License-Identifier: GPL-2.0-or-later
"""What jobs are to have, begun from what they have; every change can be taken back.

The one way to try and undo within a decision: mechanisms and moves alike put placements here, and say why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from itertools import chain
from typing import Any, Protocol, TypeVar

from pydantic_core import to_jsonable_python

from controller.model import NOWHERE, GpuId, GpuSet, Job, JobId, Moved, Placement, Snapshot, Verdict
from controller.policies.budget import Budget
from controller.policies.placement.free import NOBODY, Free
from controller.policies.recalled import recalled

T = TypeVar("T")


class Room(Protocol):
    """Who counts what is taken: a pool of GPUs, a fleet of nodes."""

    def change(self, job_id: JobId, before: Placement, after: Placement) -> Any:
        """A job goes from one placement to another. Returns what `restore` needs."""

    def restore(self, job_id: JobId, before: Placement, after: Placement, undo: Any) -> None:
        """Take that change back, the last one first."""
        self.change(job_id, after, before)


class Draft:
    """Placements by job; jobs without one are nowhere. It is kept from plan to plan."""

    def __init__(self, room: Room) -> None:
        self._room, self._placements = room, dict[JobId, Placement]()
        self._free: Free | None = None
        self._recalled: dict[str, tuple[object, Any]] = {}
        """What is remembered, as JSON and as it was read."""
        self._stale: set[JobId] = set()
        """Jobs that may have other GPUs than it says."""
        self._bound: Counter[GpuId] | None = None
        self._bindings: dict[JobId, GpuSet] = {}
        """Those that are counted there."""
        self._seen: set[JobId] = set()
        """Jobs that may be bound to others."""
        self.begin({})

    def begin(self, remembered: Mapping[str, Any]) -> Draft:
        """A plan begins. `remembered`: what moves remember, JSON by a name of theirs."""
        self.budget = Budget()
        self._log: list[tuple[JobId, Placement, Placement, Any]] = []
        self._looked = False
        """A move looks at what is free: it sees what others get meanwhile."""
        self.said: dict[JobId, str] = {}
        self.moved: list[Moved] = []
        """What moves did. No rollback changes it."""
        self.remembered = dict(remembered)
        """What moves remember from this plan on. No rollback changes it."""
        self.wake_at = math.inf
        """When a move wants to be asked again, at the latest."""
        return self

    def of(self, job_id: JobId) -> Placement:
        """What the job has as things stand."""
        return self._placements.get(job_id, NOWHERE)

    def stays(self, job: Job) -> bool:
        """Whether the job has its GPUs to itself, and is to go on so."""
        placement = job.placement
        return bool(placement.gpus) and self.of(job.id) == placement and not placement.shares_with

    @property
    def placements(self) -> Mapping[JobId, Placement]:
        return self._placements

    def hold(self, job_id: JobId, placement: Placement) -> None:
        """The job has this now, as it was observed, or as an earlier plan put it."""
        if self._bound is not None:
            self._seen.add(job_id)
        if self.of(job_id) != placement:
            self._room.change(job_id, self.of(job_id), placement)
            self._set(job_id, placement)

    def put(self, job_id: JobId, placement: Placement) -> None:
        """The job is to have this instead."""
        before = self.of(job_id)
        if before != placement:
            undo = self._room.change(job_id, before, placement)
            self._log.append((job_id, before, placement, undo))
            self._set(job_id, placement)

    def _set(self, job_id: JobId, placement: Placement) -> None:
        if placement.held:
            self._placements[job_id] = placement
        else:
            self._placements.pop(job_id, None)
        if self._free is not None:
            self._stale.add(job_id)
            if self._looked:
                self._free.hold(job_id, self._free.held(job_id) | placement.held)

    def free(self, snapshot: Snapshot) -> Free:
        """GPUs that a move can give: no job has or awaits them, and Slurm can bind one more job to them. Of
        GPUs that a floating job is bound to it has those that it is on, and all while it is on none.

        It follows what is put into the draft. What jobs leave is free when it is asked for again.
        """
        if self._free is None:
            self._free, self._stale = Free(snapshot.nodes), set(self._placements)
        if not self._looked:
            self._looked, bound = True, self.bound(snapshot)
            cards = chain.from_iterable(node.gpus for node in snapshot.nodes.values())
            full = frozenset(gpu.id for gpu in cards if bound[gpu.id] >= gpu.shards)
            self._free.hold(NOBODY, full)
        for job_id in self._stale:
            self._free.hold(job_id, self.of(job_id).held)
        self._stale.clear()
        return self._free

    def bound(self, snapshot: Snapshot) -> Mapping[GpuId, int]:
        """How many jobs Slurm has bound to each GPU."""
        if self._bound is None:
            self._bound, self._seen = Counter(), set(snapshot.jobs)
        for job_id in self._seen:
            self._bound.subtract(self._bindings.pop(job_id, ()))
            job = snapshot.jobs.get(job_id)
            if job is not None and job.placement.allocation:
                self._bindings[job_id] = job.placement.allocation
                self._bound.update(job.placement.allocation)
        self._seen.clear()
        return self._bound

    def say(self, job_id: JobId, sentence: str) -> None:
        """Why the job waits, starts, stops or moves, for `gandiva explain`. The last one counts. Plain text
        counts as `Reason.OTHER`."""
        self.said[job_id] = sentence

    def note(self, move: str, verdict: Verdict, jobs: Iterable[JobId], gain: float | None = None) -> None:
        """A move did this to these jobs, for events and metrics."""
        self.moved += [Moved(move, verdict, job_id, gain) for job_id in jobs]

    def recall(self, name: str, kind: type[T], nothing: T) -> T:
        """What is remembered under a name, read as `recalled` does: once while it stays the same. Nothing of
        it is to be changed."""
        raw = self.remembered.get(name)
        if name not in self._recalled or self._recalled[name][0] is not raw:
            self._recalled[name] = raw, recalled(raw, kind, nothing)
        found: T = self._recalled[name][1]
        return found

    def remember(self, name: str, memory: Any) -> None:
        """Remember this from plan to plan, as JSON, in place of what the name had. None: nothing. It stays as
        it is now."""
        if memory is None:
            self.remembered.pop(name, None)
        else:
            self.remembered[name] = to_jsonable_python(memory)
            self._recalled[name] = self.remembered[name], memory

    def wake(self, at: float) -> None:
        """Plan again at this time, even if nothing happens. Now: the move goes on with the next plan, and
        those behind it follow when it is through."""
        self.wake_at = min(self.wake_at, at)

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Take back everything since then."""
        while len(self._log) > mark:
            job_id, before, after, undo = self._log.pop()
            self._room.restore(job_id, before, after, undo)
            self._set(job_id, before)
            if self._free is not None and self._looked:
                self._free.hold(job_id, before.held)

    def put_since(self, mark: int = 0) -> Set[JobId]:
        """Jobs that were given a placement since then, in the order of the first time."""
        return dict.fromkeys([entry[0] for entry in self._log[mark:]]).keys()

    def freed_since(self, mark: int) -> bool:
        """Whether a job has left GPUs since then."""
        return any(before.gpus - after.gpus for _, before, after, _ in self._log[mark:])

    def changes(self) -> dict[JobId, Placement]:
        """Placements that differ from those at the beginning, in the order of the first change."""
        first: dict[JobId, Placement] = {}
        for job_id, before, _, _ in self._log:
            first.setdefault(job_id, before)
        return {job_id: now for job_id, before in first.items() if (now := self.of(job_id)) != before}
