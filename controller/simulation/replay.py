# SPDX-License-Identifier: GPL-2.0-or-later
"""Making a recorded decision again, and saying what it means for each job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from controller.model import Assignment, GpuSet, Job, JobId, Phase, Plan
from controller.policies.registry import make_policy
from controller.simulation.snapshot_file import RecordedDecision


@dataclass(frozen=True, slots=True)
class Verdict:
    """One job in the decision."""

    job: Job
    decision: str
    """starts, goes on, stops, moves, waits, is left alone"""
    gpus: GpuSet
    reason: str
    as_recorded: bool


def replay(recorded: RecordedDecision) -> tuple[Plan, list[Verdict]]:
    """The plan, made again from scratch, and each job's part in it."""
    plan = make_policy(recorded.policy).plan(recorded.snapshot, recorded.state)
    verdicts = []
    for job in sorted(recorded.snapshot.jobs.values(), key=lambda j: (j.submit_time, j.id)):
        now, then = plan.assignments.get(job.id), recorded.plan.assignments.get(job.id)
        word = _decision(job, now)
        if job.id in recorded.snapshot.busy:
            word = "is left alone"
        same = _same(now, then)
        gpus = now.gpus if now is not None and now.run else frozenset()
        verdicts.append(Verdict(job, word, gpus, plan.reasons.get(job.id, ""), same))
    return plan, verdicts


def _decision(job: Job, assignment: Assignment | None) -> str:
    on_gpus = job.phase is Phase.RUNNING
    if assignment is None or not assignment.run:
        return "stops" if on_gpus and assignment is not None else "waits"
    if not on_gpus:
        return "starts" if job.phase is Phase.QUEUED else "resumes"
    return "goes on" if assignment.gpus == job.running_on else "moves"


def _same(now: Assignment | None, then: Assignment | None) -> bool:
    if now is None or then is None:
        # No part in the plan and "do not run" are the same for a job without GPUs.
        return now is then or not (now or then or Assignment(False)).run
    return now == then


def counts(verdicts: list[Verdict]) -> dict[str, int]:
    """How many jobs start, stop, …"""
    return dict(sorted(Counter(v.decision for v in verdicts).items()))


def differing(verdicts: list[Verdict]) -> list[JobId]:
    """Jobs whose part is not the recorded one."""
    return [v.job.id for v in verdicts if not v.as_recorded]
