# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that grew give GPUs back, for jobs that wait (SPEC 1.6): those that grew last first, by halves, down
to what they asked for. Nothing is taken where it helps no job."""

from __future__ import annotations

from collections.abc import Sequence

from controller.model import Job, JobId, Snapshot
from controller.policies.moves.resizing import (
    Needs,
    Record,
    kept_gpus,
    may_resize,
    node_of,
    resize,
    usable_gpus,
)
from controller.policies.placement.draft import Draft

_Step = tuple[Job, int]
"""A job, and the size that it is left with."""


class Shrinking:
    """Within one plan."""

    def __init__(self, snapshot: Snapshot, draft: Draft, record: Record) -> None:
        self._snapshot, self._draft, self._record = snapshot, draft, record
        self._sizes = {
            job.id: len(job.placement.gpus)
            for job in snapshot.jobs.values()
            if may_resize(draft, job) and len(job.placement.gpus) > job.request.size.wanted
        }
        """Of jobs that grew, as things stand."""
        self._for: dict[JobId, JobId] = {}

    def help(self, waiting: Sequence[Job], needs: Needs) -> set[JobId]:
        """Make room for as many of these as that is possible for, in their order. Returns who shrinks."""
        if self._sizes and waiting:
            free = {name: self._draft.free(self._snapshot).count_on(name) for name in self._snapshot.nodes}
            in_vain: set[object] = set()
            for job in waiting:
                kind = needs.kind(job)
                if kind not in in_vain and not self._help(job, needs, free):
                    in_vain.add(kind)
        for job_id, other in self._for.items():
            job = self._snapshot.jobs[job_id]
            gpus = kept_gpus(self._snapshot, job, self._sizes[job_id])
            resize(self._draft, job, gpus, f"job {other} waits for GPUs")
            self.note(job, len(gpus))
        return set(self._for)

    def note(self, job: Job, size: int) -> None:
        """It has this size from now on."""
        entry = self._record.grown.get(job.id)
        if size <= job.request.size.wanted or entry is None:
            self._record.grown.pop(job.id, None)
        else:
            self._record.grown[job.id] = (entry[0], min(entry[1], size // 2))

    def _help(self, job: Job, needs: Needs, free: dict[str, int]) -> bool:
        """Whether the job has room now."""
        count, share = needs.share(job)
        options: list[tuple[tuple[object, ...], str, list[_Step]]] = []
        for name, there in free.items():
            if not needs.may_use(job, self._snapshot.nodes[name]):
                continue
            steps = self._steps(name, share - there)
            if steps is not None:
                grown_at = max((self._grown_at(victim.id) for victim, _ in steps), default=0.0)
                options.append(((bool(steps), -grown_at, name), name, steps))
        if len(options) < count:
            return False
        for _, name, steps in sorted(options, key=lambda option: option[0])[:count]:
            for victim, size in steps:
                free[name] += self._freed(victim, self._sizes[victim.id], size)
                self._sizes[victim.id] = size
                self._for[victim.id] = job.id
            free[name] -= share
        return True

    def _steps(self, name: str, missing: int) -> list[_Step] | None:
        """Which jobs of this node shrink, so that so many GPUs more are free. None: not enough can."""
        jobs = [self._snapshot.jobs[job_id] for job_id in self._sizes]
        here = [job for job in jobs if node_of(job.placement.gpus) == name]
        steps: list[_Step] = []
        for job in sorted(here, key=lambda job: (-self._grown_at(job.id), -job.id)):
            size = now = self._sizes[job.id]
            while missing > 0 and size // 2 >= job.request.size.wanted:
                missing -= self._freed(job, size, size // 2)
                size //= 2
            if self._freed(job, now, size):
                steps.append((job, size))
        return steps if missing <= 0 else None

    def _freed(self, job: Job, size: int, after: int) -> int:
        """How many GPUs others can have when it shrinks from one size to another."""
        usable = len(usable_gpus(self._snapshot, job))
        return min(size, usable) - min(after, usable)

    def _grown_at(self, job_id: JobId) -> float:
        return self._record.grown.get(job_id, (0.0, 0))[0]
