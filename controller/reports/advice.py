# SPDX-License-Identifier: GPL-2.0-or-later
"""What to do about a job: one sentence for each place that it can be in."""

from __future__ import annotations

from controller.api.messages import JobMessage, LiveJobMessage
from controller.reports.slurm_job import SlurmJob

_BY_PHASE = {
    "queued": "nothing: it starts when there is room. Fewer GPUs, or no --nodelist and --gandiva-gpu-types, "
    "find room earlier",
    "starting": "nothing: Slurm starts it within seconds",
    "yielded": "nothing: it goes on by itself when its turn comes",
    "suspended": "nothing: it goes on by itself when its turn comes",
    "stuck": "ask your administrators: gandiva status and the controller's log say what holds its GPUs; "
    "scancel frees them",
    "unknown": "ask your administrators: gandiva status names the node. The job itself may well be training",
}
_BY_STATE = {
    "FAILED": "see the end of its output",
    "NODE_FAIL": "submit it again, from its last checkpoint",
    "TIMEOUT": "submit it again with more --time; time off the GPUs does not count",
    "OUT_OF_MEMORY": "submit it again with more --mem: what a suspended job had on GPUs is in host memory",
}


def why_not_eligible(slurm: SlurmJob | None) -> str:
    """Why Slurm would not start a job that Gandiva has not taken in yet."""
    if slurm is None or not slurm.reason:
        return ""
    if slurm.reason.startswith("JobHeld"):
        return "held by its user or an operator (scontrol hold, sbatch --hold)"
    if slurm.reason.startswith("Dependency"):
        return f"waits for other jobs: {slurm.dependency}" if slurm.dependency else "waits for other jobs"
    if slurm.reason == "BeginTime":
        return f"not to begin before {slurm.eligible_time or 'its --begin time'}"
    return f"Slurm says {slurm.reason}"


def next_step(job: JobMessage | None, live: LiveJobMessage | None, slurm: SlurmJob | None) -> str:
    """What the user can do; empty: nothing worth saying."""
    if live is None:
        return _BY_STATE.get(job.state.split()[0] if job and job.state else "", "")
    if live.phase == "ineligible":
        held = slurm is not None and slurm.reason.startswith("JobHeld")
        return (
            f"scontrol release {live.job_id}"
            if held
            else "nothing: Gandiva takes it in when Slurm would start it"
        )
    if live.phase == "running" and not live.suspendable:
        return (
            "call step() of its session between mini-batches, or submit it with --gandiva-suspend=requeue: "
            "until it can be suspended it shares its GPUs with nobody"
        )
    return _BY_PHASE.get(live.phase, "")
