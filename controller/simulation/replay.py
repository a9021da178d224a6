# SPDX-License-Identifier: GPL-2.0-or-later
"""Making a recorded decision again, and saying what it means for each job."""

from dataclasses import replace
from typing import Any

from controller.model import ALL_CHANGED, Job, Phase, Plan, Target
from controller.policies.assemble import make_policy
from controller.policies.site import is_site_part
from controller.settings.policies import PolicySettings
from controller.simulation.snapshot_file import RecordedDecision


def replay(recorded: RecordedDecision) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan, made again from nothing but the record, and each job's part in it as JSON has it. What is
    decided: starts, resumes, goes on, stops, moves, waits, is left alone. Raises SettingsError."""
    snapshot = replace(recorded.snapshot, changed=ALL_CHANGED)
    plan = make_policy(recorded.policy, others=None).plan(snapshot, recorded.memory)
    verdicts: list[dict[str, Any]] = []
    for job in sorted(snapshot.jobs.values(), key=lambda j: (j.submit_time, j.id)):
        now, then = _differing(job, plan), _differing(job, recorded.plan)
        gpus = job.placement.gpus if now is None else now.placement.gpus
        verdicts.append(
            {
                "job_id": job.id,
                "gpus": job.gpus,
                "decision": _decision(job, now),
                "on": [str(gpu) for gpu in sorted(gpus)],
                "reason": plan.reasons.get(job.id, ""),
                "as_recorded": now == then,
            }
        )
    return plan, verdicts


def own_parts(settings: PolicySettings) -> list[str]:
    """Names of a site's own parts among them."""
    return [name for name in (settings.name, *settings.moves) if is_site_part(name)]


def _differing(job: Job, plan: Plan) -> Target | None:
    """What the plan wants for the job, if that is not what it has."""
    target = plan.targets.get(job.id)
    return None if target is None or target.placement.gpus == job.placement.gpus else target


def _decision(job: Job, target: Target | None) -> str:
    if job.switching:
        return "is left alone"
    if target is None:
        return "goes on" if job.placement.gpus else "waits"
    if not target.placement.gpus:
        return "stops"
    if not job.placement.gpus:
        return "starts" if job.phase is Phase.QUEUED else "resumes"
    return "moves"
