# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns of jobs on GPUs, as the jobs wrote them down: GPUs in use, and gaps at switches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel


class TurnLine(BaseModel):
    """One line of a job (job.py)."""

    node: str
    gpus: tuple[str, ...]
    begin: float
    end: float
    steps: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One job on one GPU, from the begin of its first mini-batch to the end of its last. Seconds."""

    job_id: int
    gpu: tuple[str, str]
    begin: float
    end: float
    first: bool
    """The job's first turn: before it lies a start in Slurm, not a resume."""
    reports: bool
    """One of the GPUs of each turn of rank 0 speaks for the whole job."""
    steps: int


def read(text: str) -> list[Turn]:
    """From `grep -H . turns/*`: lines of FILE:JSON, where FILE is JOB.RANK."""
    found = []
    seen: set[str] = set()
    for row in text.splitlines():
        name, _, line = row.partition(":")
        name = name.rpartition("/")[2]
        turn = TurnLine.model_validate_json(line)
        job_id = int(name.partition(".")[0])
        rank0 = name.endswith(".0")
        found += [
            Turn(
                job_id,
                (turn.node, gpu),
                turn.begin,
                turn.end,
                first=name not in seen,
                reports=rank0 and number == 0,
                steps=turn.steps,
            )
            for number, gpu in enumerate(turn.gpus)
        ]
        seen.add(name)
    return found


def switches(turns: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """Pairs of turns of two jobs that followed each other on one GPU."""
    by_gpu: dict[tuple[str, str], list[Turn]] = {}
    for turn in turns:
        by_gpu.setdefault(turn.gpu, []).append(turn)
    pairs = []
    for group in by_gpu.values():
        group.sort(key=lambda turn: turn.begin)
        pairs += [(a, b) for a, b in itertools.pairwise(group) if a.job_id != b.job_id]
    return pairs


def in_use(turns: Sequence[Turn], begin: float, end: float, points: int) -> list[tuple[float, float]]:
    """(seconds since `begin`, GPUs on which a job was having its turn), averaged over equal parts."""
    width = (end - begin) / points
    sums = [0.0] * points
    for turn in turns:
        first = max(0, int((turn.begin - begin) / width))
        last = min(points - 1, int((turn.end - begin) / width))
        for part in range(first, last + 1):
            low, high = begin + part * width, begin + (part + 1) * width
            sums[part] += max(0.0, min(turn.end, high) - max(turn.begin, low))
    return [((part + 0.5) * width, total / width) for part, total in enumerate(sums)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
