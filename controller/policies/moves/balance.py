# SPDX-License-Identifier: GPL-2.0-or-later
"""Balance: jobs take turns on some GPUs while others are free. One of them goes there (SPEC 1.5, 1.8). GPUs
become free when jobs depart, and the plan is made again then.

A job that is off its GPUs goes itself where it can save its state from host memory: also one that jobs of a
higher class keep off them. Else the one that runs on them goes, and makes room.

Source: Gandiva (OSDI'18) 3.4, 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from controller.model import GpuId, Job, JobId, Snapshot, by_node
from controller.policies.moves.migrations import Migrations
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import tightest
from controller.policies.settings import MigrationSettings

NAME = "balance"


class Balance:
    """One job after the other, those first that wait."""

    def __init__(self, migration: MigrationSettings) -> None:
        self._migration = migration

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        waiting = _Waiting(snapshot, draft)
        if not waiting.jobs or not (free := draft.free(snapshot)):
            return
        migrations = Migrations(snapshot, draft, self._migration)
        for job, helped, words in chain(_themselves(waiting), _in_the_way(waiting, snapshot)):
            if migrations.left <= 0:
                break
            name = tightest(free, job, snapshot.nodes)
            gpus = min(job.gpus, sum(other.gpus for other in helped))
            gain = gpus * migrations.remaining_seconds(job)
            if name is None or not migrations.pays(gain, [job]) or not migrations.may_go(job):
                continue
            waiting.serve(helped, job.gpus)
            migrations.go(NAME, job.id, frozenset(free.on(name)[: job.gpus]), words)
        migrations.save()


_Candidate = tuple[Job, list[Job], str]
"""A job that may go, those that have its GPUs then or go themselves, and why in words."""


def _themselves(waiting: _Waiting) -> Iterator[_Candidate]:
    """Jobs that wait for their GPUs, on one node each: those of a higher class first, then those that use
    most GPUs."""
    able = [job for job in waiting.jobs if job.may_migrate and len(by_node(job.placement.allocation)) == 1]
    for job in sorted(able, key=lambda job: (-job.priority_class, -job.gpus, job.id)):
        yield job, [job], "there is room, and it waits for a turn where it is bound"


def _in_the_way(waiting: _Waiting, snapshot: Snapshot) -> Iterator[_Candidate]:
    """Jobs that run where others wait, those first that make room for most."""
    for job in waiting.in_the_way(snapshot):
        # An earlier one may have made room for them.
        if helped := waiting.for_gpus_of(job):
            yield job, helped, f"there is room, and job {helped[0].id} waits for the GPUs that it leaves"


class _Waiting:
    """Jobs that are bound to GPUs, off them, and could go on there."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        found = (job for job in snapshot.jobs.values() if job.may_start and job.placement.allocation)
        self.jobs = [job for job in found if not draft.of(job.id).gpus]
        self._by_gpu: dict[GpuId, list[Job]] = {}
        for job in self.jobs:
            for gpu in job.placement.allocation:
                self._by_gpu.setdefault(gpu, []).append(job)
        self._served: set[JobId] = set()

    def in_the_way(self, snapshot: Snapshot) -> list[Job]:
        """Jobs that run on these GPUs, on one node each: those first for whose GPUs most wait."""
        found: list[tuple[int, Job]] = []
        for job in snapshot.jobs.values():
            gpus = job.placement.gpus
            if len(by_node(gpus)) == 1 and not self._by_gpu.keys().isdisjoint(gpus):
                wanted = sum(other.gpus for other in self.for_gpus_of(job))
                found.append((min(job.gpus, wanted), job))
        return [job for _, job in sorted(found, key=lambda entry: (-entry[0], entry[1].gpus, entry[1].id))]

    def for_gpus_of(self, job: Job) -> list[Job]:
        """Those that wait for GPUs of this one, and that it does not outrank."""
        others = {other.id: other for gpu in job.placement.gpus for other in self._by_gpu.get(gpu, ())}
        return [
            other
            for job_id, other in sorted(others.items())
            if job_id not in self._served and other.priority_class >= job.priority_class
        ]

    def serve(self, jobs: list[Job], gpus: int) -> None:
        """So many GPUs are left to the first of these."""
        for job in jobs:
            if gpus <= 0:
                break
            self._served.add(job.id)
            gpus -= job.gpus
