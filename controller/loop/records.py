# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs as the reports show them, kept in the journal."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from controller.cluster.port import ClusterJob, JobState
from controller.errors import JournalError
from controller.journal import Journal
from controller.journal.records import JobRecord
from controller.model import JobId, Request
from controller.observe.memory import JobMemories
from controller.observe.observer import Observer
from controller.observe.requests import RequestReader

_ENDING = "ending"
"""The part of the loop under which the journal has until when a job that Slurm cleans up was suspended."""


class JobRecords:
    """Writes a job's record when it differs from the last one."""

    def __init__(self, journal: Journal, memory: JobMemories, requests: RequestReader) -> None:
        self._journal, self._memory, self._requests = journal, memory, requests
        self._written: dict[JobId, JobRecord] = {}
        self._others: set[JobId] = set()
        """Ids that are another job's from now on."""
        self._all = False
        self._first = True
        self._followed_at = journal.last_heartbeat() or 0.0
        ending = {i: note[0] for i, note in journal.notes(_ENDING).items() if note and type(note[0]) is float}
        self._suspended = ending | dict.fromkeys(journal.suspended(), math.inf)
        """Jobs that Slurm suspended, until when they were seen so (inf: until the last look)."""

    def begin_again(self, job_id: JobId) -> None:
        """The next record of this id is of another job."""
        self._others.add(job_id)

    def write_anew(self, now: float) -> None:
        """The journal is a new one: what is known of living jobs goes into it."""
        self._written, self._all = {}, True
        for job_id in self._memory.known():
            memory = self._memory.of(job_id)
            self._journal.carry_over(job_id, memory.usage, now)
            if memory.usage.since is not None:
                self._journal.open_slice(job_id, memory.gpus, now)

    def follow(self, observer: Observer, now: float) -> None:
        """After a cycle."""
        jobs = observer.slurm.jobs
        looked_at: Iterable[JobId] = jobs.keys() | observer.looked_at if self._all else observer.looked_at
        self._all = False
        if self._first:
            with suppress(JournalError):  # reported when the journal is committed, and tried again
                self._journal.end_gone(jobs.keys(), now)
                self._first = False
        for job_id in looked_at:
            seen = jobs.get(job_id)
            if seen is None:
                self._forget(job_id, now)
            elif (request := self._requests.of(seen)) is not None:
                self._write(self._record(seen, request, observer, now))
            if seen is not None and seen.state is JobState.SUSPENDED:
                self._suspended[job_id] = math.inf
            elif seen is not None and seen.state is JobState.COMPLETING and job_id in self._suspended:
                self._suspended[job_id] = until = min(self._suspended[job_id], self._followed_at)
                self._journal.save_note(_ENDING, job_id, (until,))
            else:
                self._suspended.pop(job_id, None)
        self._followed_at = now

    def _write(self, record: JobRecord) -> None:
        if self._written.get(record.id) == record:
            return
        if record.id in self._others:
            self._others.discard(record.id)
            self._journal.begin_again(record.id)
        self._written[record.id] = record
        self._journal.upsert_job(record)

    def _forget(self, job_id: JobId, now: float) -> None:
        record = self._written.pop(job_id, None)
        if record is not None and record.end_time is None:
            # slurmctld forgot it before its end was seen: it was down, or MinJobAge is short.
            self._journal.upsert_job(replace(record, end_time=now, state="UNKNOWN"))

    def _end_of(self, job: ClusterJob, now: float) -> float:
        """Of a job that ends while it is suspended Slurm says when it was suspended last; it ended no earlier
        than it was seen."""
        end = now if job.end_time is None else job.end_time
        return max(end, min(self._suspended.get(job.id, 0.0), self._followed_at, now))

    def _record(self, job: ClusterJob, request: Request, observer: Observer, now: float) -> JobRecord:
        memory, measured = self._memory.of(job.id), observer.measured
        profile, utilization = measured.profiles.get(job.id), measured.utilization.of(job.id)
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
            end_time=self._end_of(job, now) if ended else None,
            state=job.state_name,
            request=_request_json(request),
            moves=memory.moves,
            suspends=memory.suspends,
            step_seconds=measured.rate_meter.step_seconds.get(job.id),
            peak_memory_bytes=(profile.peak_memory_bytes or None) if profile is not None else None,
            exit_code=job.exit_code if ended else None,
            utilization_fraction=None if utilization is None else round(utilization, 2),
        )


def _request_json(request: Request) -> dict[str, Any]:
    size, search = request.size, request.search
    found = {
        "gpus": size.wanted,
        "nodes": request.nodes,
        "weight": request.weight,
        "weight_asked": request.weight_asked,
        "weight_limit": request.weight_limit or None,
        "min_gpus": size.least if size.least != size.wanted else None,
        "max_gpus": size.most if size.most != size.wanted else None,
        "pack": request.may_pack,
        "migrate": request.may_migrate,
        "suspend": request.suspend.value if request.suspend else None,
        "gpu_types": list(request.gpu_types),
        "model": request.model,
    }
    if search is not None:
        found |= {"search": search.name, "priority": search.priority, "exclusive": search.exclusive}
    return found
