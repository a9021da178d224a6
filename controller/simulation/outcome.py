# SPDX-License-Identifier: GPL-2.0-or-later
"""What became of the jobs of a simulation, computed from its journal."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise

from controller.journal.memory import MemoryJournal
from controller.journal.records import Slice
from controller.model import GpuId, JobId, value
from controller.settings.schema import Settings
from controller.simulation.traces import TraceJob

_PREEMPTIONS = """
    SELECT job_id, count(*) FROM operations WHERE kind IN ('suspend', 'requeue', 'migrate') GROUP BY job_id
"""


@value
class JobOutcome:
    """What became of one job, in the order of --jobs-out. Times in seconds, those of the trace."""

    id: str
    gpus: int
    submit_seconds: float
    start_seconds: float
    end_seconds: float
    jct_seconds: float
    queueing_seconds: float
    run_seconds: float
    preemptions: int
    migrations: int


@value
class Outcome:
    label: str
    """What tells it from others of one comparison."""
    settings: Settings
    submitted: int
    gpus: int
    jobs: tuple[JobOutcome, ...]
    """Those that ended, in the order of the trace."""
    usage: tuple[tuple[float, int], ...]
    """(time, GPUs in use from then on)."""
    gpu_seconds: float
    decision_seconds: tuple[float, ...]
    """Real time of each decision of the policy."""
    wall_seconds: float


def job_outcomes(
    jobs: Mapping[JobId, TraceJob], ends: Mapping[JobId, float], journal: MemoryJournal
) -> tuple[JobOutcome, ...]:
    """Each job of the trace; `ends`: when its work was done. All of them must have ended."""
    slices: defaultdict[JobId, list[Slice]] = defaultdict(list)
    for piece in journal.slices:
        slices[piece.job_id].append(piece)
    preemptions = Counter({JobId(job_id): count for job_id, count in journal.read(_PREEMPTIONS)})
    return tuple(
        JobOutcome(
            id=job.id,
            gpus=job.gpus,
            submit_seconds=job.submit_seconds,
            start_seconds=slices[job_id][0].start,
            end_seconds=ends[job_id],
            jct_seconds=ends[job_id] - job.submit_seconds,
            queueing_seconds=slices[job_id][0].start - job.submit_seconds,
            run_seconds=sum(map(_seconds, slices[job_id])),
            preemptions=preemptions[job_id],
            migrations=sum(before.gpus != after.gpus for before, after in pairwise(slices[job_id])),
        )
        for job_id, job in jobs.items()
    )


def usage_curve(slices: Iterable[Slice]) -> tuple[tuple[float, int], ...]:
    """(time, GPUs in use from then on), in order."""
    changes: Counter[float] = Counter()
    for start, end in _held(slices):
        changes[start] += 1
        changes[end] -= 1
    times = sorted(changes)
    return tuple(zip(times, accumulate(changes[time] for time in times), strict=True))


def gpu_seconds(slices: Iterable[Slice]) -> float:
    """Time that GPUs were in use; that of jobs which share a GPU counts once."""
    return math.fsum(end - start for start, end in _held(slices))


def _held(slices: Iterable[Slice]) -> Iterable[tuple[float, float]]:
    """When GPUs were in use, one by one, from when to when."""
    by_gpu: defaultdict[GpuId, list[tuple[float, float]]] = defaultdict(list)
    for piece in slices:
        assert piece.end is not None
        for gpu in piece.gpus:
            by_gpu[gpu].append((piece.start, piece.end))
    for spans in by_gpu.values():
        spans.sort()
        since, until = spans[0]
        for start, end in spans:
            if start > until:
                yield since, until
                since = start
            until = max(until, end)
        yield since, until


def _seconds(piece: Slice) -> float:
    assert piece.end is not None
    return piece.end - piece.start
