# SPDX-License-Identifier: GPL-2.0-or-later
"""Locality: a gang that is spread over more nodes than its size needs continues on as few as that, once they
have room (SPEC 1.5, 1.8). Room comes when jobs depart, and the plan is made again then.

The gain is what the gang does faster there: as its model was measured, or declared, in both configurations;
where that is not known, what the settings assume. So a model that was seen to be as fast when spread is left
where it is.

Source: Gandiva (OSDI'18) 3.4, 4.4.
"""

from dataclasses import replace

from controller.model import (
    NOWHERE,
    Configuration,
    GpuSet,
    Job,
    JobId,
    Snapshot,
    by_node,
    gpu_type,
    rate_key,
)
from controller.policies.moves.migrations import Migrations
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import NOBODY, Free
from controller.policies.placement.gangs import find, spreads
from controller.policies.settings import LocalitySettings, MigrationSettings

NAME = "locality"


class Locality:
    """Those first that gain most."""

    def __init__(self, settings: LocalitySettings, migration: MigrationSettings) -> None:
        self._settings, self._migration = settings, migration

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        spread = [job for job in snapshot.jobs.values() if len(by_node(job.placement.gpus)) > 1]
        if not spread:
            return
        migrations, free = Migrations(snapshot, draft, self._migration), draft.free(snapshot)
        ranked: list[tuple[float, JobId, float]] = []
        for job in spread:
            fewest = _fewest(free, job, gpu_type(job.placement.gpus, snapshot.nodes))
            if fewest >= len(by_node(job.placement.gpus)) or not migrations.may_go(job):
                continue
            speedup = self._speedup(snapshot, job, fewest)
            gain_gpu_seconds = (speedup - 1) * job.gpus * migrations.remaining_seconds(job)
            if migrations.pays(gain_gpu_seconds, [job]):
                ranked.append((-gain_gpu_seconds, job.id, speedup))
        for _, job_id, speedup in sorted(ranked):
            job = snapshot.jobs[job_id]
            kind = gpu_type(job.placement.gpus, snapshot.nodes)
            gpus = _together(free, job, kind) if migrations.left > 0 else None
            if gpus is not None:
                words = f"it was spread over {len(by_node(job.placement.gpus))} nodes, and is expected to do "
                migrations.go(NAME, job_id, gpus, f"{words}{speedup:.2f} times as much there", speedup)
        migrations.save()

    def _speedup(self, snapshot: Snapshot, job: Job, nodes: int) -> float:
        """How many times as fast it is on so many nodes as it is now."""
        gpus, table = job.placement.gpus, snapshot.rates.get(rate_key(job), {})
        kind = gpu_type(gpus, snapshot.nodes)
        now, then = (
            table.get(Configuration(kind, len(gpus), count)) for count in (len(by_node(gpus)), nodes)
        )
        if now is None or then is None or now.samples_per_second <= 0:
            return 1 + self._settings.assumed_gain_fraction
        return then.samples_per_second / now.samples_per_second


def _fewest(free: Free, job: Job, kind: str) -> int:
    """On how many nodes it could be at least; as many as now where it may not choose."""
    counts = spreads(free, job, True, kind) if kind else []
    return min(counts, default=len(by_node(job.placement.gpus)))


def _together(free: Free, job: Job, kind: str) -> GpuSet | None:
    """GPUs for it on as few nodes, its own among those that it can have. None: there is no room. They are
    taken; those that it leaves are for the mechanism."""
    own, full = job.placement.gpus, free.held(NOBODY)
    free.hold(job.id, frozenset())
    free.hold(NOBODY, full - own)
    found = find(free, replace(job, placement=NOWHERE), kind, consolidated=True)
    free.hold(NOBODY, full)
    free.hold(job.id, own | (found or frozenset()))
    return found
