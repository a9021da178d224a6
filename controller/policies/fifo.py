# SPDX-License-Identifier: GPL-2.0-or-later
"""First come, first served, with exclusive GPUs: what stock Slurm does without backfill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.model import ALLOCATED, ON_GPU, Assignment, GpuId, Job, JobId, Phase, Plan, Snapshot
from controller.policies.placement import first_fit
from controller.policies.servers import build_servers
from controller.settings.base import Section, setting


class FifoSettings(Section):
    """First come, first served on whole GPUs, as stock Slurm would without backfill."""

    skip: bool = setting(
        False, "Let later jobs pass one that does not fit now. false: the head of the queue blocks."
    )


class Fifo:
    """Jobs start in the order of submission, on free GPUs of the fullest server they fit on, and keep
    their GPUs to the end."""

    name = "fifo"

    def __init__(self, settings: FifoSettings | None = None) -> None:
        self._settings = settings or FifoSettings()

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """Source: Slurm's `sched/builtin`; SPEC 2.6 `fifo` and `fjf` (with `skip`)."""
        servers = build_servers(snapshot)
        assignments: dict[JobId, Assignment] = {}
        reasons: dict[JobId, str] = {}
        in_order = sorted(snapshot.jobs.values(), key=lambda j: (-j.priority_class, j.submit_time, j.id))

        # Suspended jobs exist only where another policy ran before: one after the other gets its GPUs back.
        taken: set[GpuId] = set()
        for job in sorted(in_order, key=lambda j: j.phase not in ON_GPU):
            if job.phase not in ALLOCATED or job.phase is Phase.COMPLETING:
                continue
            gpus = job.running_on or frozenset(sorted(job.binding)[: job.gpus])
            run = job.phase in ON_GPU or taken.isdisjoint(gpus)
            if run:
                taken |= gpus
            else:
                reasons[job.id] = "waits until the job on its GPUs has ended"
            assignments[job.id] = Assignment(run=run, gpus=gpus, binding=job.binding)

        queue = [j for j in in_order if j.phase is Phase.QUEUED and j.id not in snapshot.busy]
        blocked_by: JobId | None = None
        for job in queue:
            if blocked_by is not None:
                reasons[job.id] = f"waits behind job {blocked_by}"
                continue
            if job.not_before is not None and job.not_before > snapshot.time:
                reasons[job.id] = "could not be started a moment ago; tries again shortly"
                continue
            binding = first_fit(job, servers)
            if binding is None:
                reasons[job.id] = f"waits for {job.gpus} free GPUs"
                if not self._settings.skip:
                    blocked_by = job.id
                continue
            assignments[job.id] = Assignment(run=True, gpus=binding, binding=binding)
            reasons[job.id] = "its turn, and the GPUs are free"
        return Plan(assignments, reasons, state={}, wake_at=_earliest_retry(queue, snapshot.time))


def _earliest_retry(queue: list[Job], now: float) -> float | None:
    return min((j.not_before for j in queue if j.not_before is not None and j.not_before > now), default=None)
