# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs as the reports show them, kept in the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controller.journal.port import JournalPort
from controller.journal.records import JobRecord
from controller.model.clock import Clock
from controller.model import JobId, Request, Snapshot
from controller.observe.memory import Memory
from controller.observe.observer import Observer, Requests
from controller.slurm.port import JobState, SlurmJob


class JobRecords:
    """Writes a job's record when it differs from the last one."""

    def __init__(self, journal: JournalPort, memory: Memory, requests: Requests, clock: Clock) -> None:
        self._journal, self._memory, self._requests, self._clock = journal, memory, requests, clock
        self._written: dict[JobId, JobRecord] = {}
        self._generation = journal.generation
        self._first = True

    def follow(self, observer: Observer, snapshot: Snapshot) -> None:
        """After a turn. `changed` names the jobs whose record can differ."""
        now, jobs = snapshot.time, observer.slurm.jobs
        if self._journal.generation != self._generation:
            # The file was damaged or removed: what is known of living jobs goes into the new one.
            self._generation, self._written = self._journal.generation, {}
            self._carry_over(now)
        looked_at: Iterable[JobId] = snapshot.changed.jobs
        if snapshot.changed.everything or not self._written:
            looked_at = {*jobs, *self._written}
        if self._first:
            self._journal.end_gone(jobs.keys(), now)
            self._first = False
        for job_id in looked_at:
            seen = jobs.get(job_id)
            if seen is None:
                self._forget(job_id, now)
            elif (request := self._requests(seen)) is not None:
                self._write(self._record(seen, request, snapshot))

    def _write(self, record: JobRecord) -> None:
        if self._written.get(record.id) != record:
            self._written[record.id] = record
            self._journal.upsert_job(record)

    def _forget(self, job_id: JobId, now: float) -> None:
        record = self._written.pop(job_id, None)
        if record is not None and record.end_time is None:
            # slurmctld forgot it before its end was seen: it was down, or MinJobAge is short.
            self._journal.upsert_job(replace(record, end_time=now, state="UNKNOWN"))

    def _carry_over(self, now: float) -> None:
        for job_id in self._memory.known():
            memory = self._memory.of(job_id)
            self._journal.carry_over(job_id, memory.usage, now)
            if memory.usage.since is not None:
                self._journal.open_slice(job_id, memory.gpus, now)

    def _record(self, job: SlurmJob, request: Request, snapshot: Snapshot) -> JobRecord:
        memory, profile = self._memory.of(job.id), snapshot.profiles.get(job.id)
        ended = job.state is JobState.ENDED
        return JobRecord(
            id=job.id,
            user=job.user,
            gpus=request.size.wanted,
            submit_time=job.submit_time,
            name=job.name,
            account=job.account,
            partition=job.partition,
            weight=request.weight,
            start_time=memory.first_start,
            end_time=(job.end_time or self._clock.now()) if ended else None,
            state=job.state_name,
            request=_request_json(request),
            moves=memory.moves,
            suspends=memory.suspends,
            peak_memory_bytes=(profile.peak_memory_bytes or None) if profile is not None else None,
            exit_code=job.exit_code if ended else None,
        )


def _request_json(request: Request) -> dict[str, Any]:
    size = request.size
    return {
        "gpus": size.wanted,
        "min_gpus": size.least if size.least != size.wanted else None,
        "max_gpus": size.most if size.most != size.wanted else None,
        "nodes": request.nodes,
        "weight": request.weight,
        "weight_asked": request.weight_asked,
        "weight_limit": request.weight_limit or None,
        "pack": request.may_pack,
        "migrate": request.may_migrate,
        "suspend": request.suspend.value if request.suspend else None,
        "gpu_types": list(request.gpu_types),
        "model": request.model,
    }
