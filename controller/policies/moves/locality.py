# SPDX-License-Identifier: GPL-2.0-or-later
"""Locality: a gang that is spread over more servers than its size needs goes on on as few as that, once they
have room (SPEC 1.5, 1.8). Room comes when jobs depart, and the plan is made again then.

The gain is what the gang does faster there: as its model was measured, or declared, in both configurations;
where that is not known, what the settings assume. So a model that was seen to be as fast when spread is left
where it is.

Source: Gandiva (OSDI'18) 3.4, 4.4.
"""

from __future__ import annotations

from dataclasses import replace

from controller.model import (
    NOWHERE,
    Configuration,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Snapshot,
    by_node,
    gpu_type,
    rate_key,
)
from controller.policies.moves.free import free_gpus
from controller.policies.moves.migrations import Migrations
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import find, spreads
from controller.policies.placement.pool import GpuPool
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
        migrations, pools = Migrations(snapshot, draft, self._migration), _Pools(snapshot, draft)
        ranked: list[tuple[float, JobId, float]] = []
        for job in spread:
            fewest = pools.fewest(job)
            if fewest >= len(by_node(job.placement.gpus)) or not migrations.may_go(job):
                continue
            speedup = self._speedup(snapshot, job, fewest)
            gain_gpu_seconds = (speedup - 1) * job.gpus * migrations.remaining_seconds(job)
            if migrations.pays(gain_gpu_seconds, [job]):
                ranked.append((-gain_gpu_seconds, job.id, speedup))
        for _, job_id, speedup in sorted(ranked):
            job = snapshot.jobs[job_id]
            gpus = pools.together(job) if migrations.left > 0 else None
            if gpus is not None:
                words = (
                    f"it was spread over {len(by_node(job.placement.gpus))} servers, and is expected to do "
                )
                migrations.go(NAME, job_id, gpus, f"{words}{speedup:.2f} times as much there", speedup)
        migrations.save()

    def _speedup(self, snapshot: Snapshot, job: Job, nodes: int) -> float:
        """How many times as fast it is on so many servers as it is now."""
        gpus, table = job.placement.gpus, snapshot.rates.get(rate_key(job), {})
        kind = gpu_type(gpus, snapshot.nodes)
        now, then = (
            table.get(Configuration(kind, len(gpus), count)) for count in (len(by_node(gpus)), nodes)
        )
        if now is None or then is None or now.samples_per_second <= 0:
            return 1 + self._settings.assumed_gain_fraction
        return then.samples_per_second / now.samples_per_second


class _Pools:
    """Free GPUs by type, as the draft has them, made when they are asked for."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._snapshot, self._draft = snapshot, draft
        self._pools: dict[str, GpuPool] = {}
        self._free: frozenset[GpuId] | None = None

    def fewest(self, job: Job) -> int:
        """On how many servers it could be at least; as many as now where it may not choose."""
        counts = spreads(self._of(job), job, consolidated=True)
        return min(counts, default=len(by_node(job.placement.gpus)))

    def together(self, job: Job) -> GpuSet | None:
        """GPUs for it on as few servers, its own among those that it can have. None: there is no room. They
        are taken; those that it leaves are for the mechanism."""
        pool, own = self._of(job), job.placement.gpus
        pool.give(own)
        found = find(pool, replace(job, placement=NOWHERE), consolidated=True)
        pool.take(own | (found or frozenset()))
        return found

    def _of(self, job: Job) -> GpuPool:
        kind = gpu_type(job.placement.gpus, self._snapshot.nodes)
        if kind not in self._pools:
            self._pools[kind] = self._make(kind)
        return self._pools[kind]

    def _make(self, kind: str) -> GpuPool:
        if self._free is None:
            free = free_gpus(self._snapshot, self._draft)
            self._free = frozenset(gpu for gpus in free.values() for gpu in gpus)
        nodes = {
            name: node
            for name, node in self._snapshot.nodes.items()
            if all(gpu.model == kind for gpu in node.gpus)
        }
        pool = GpuPool(nodes)
        pool.take(gpu.id for node in nodes.values() for gpu in node.gpus if gpu.id not in self._free)
        return pool
