# SPDX-License-Identifier: GPL-2.0-or-later
"""What a user can do about a job, for each state that it can be in."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from controller.api.messages import EventMessage, JobMessage, LiveJobMessage
from controller.cluster.port import JOB_REASONS, LIMIT_REASONS
from controller.cluster.states import ADMIN_HOLD, RELEASE
from controller.model import FailedSuspends
from controller.model.value import value
from controller.reports import units
from controller.reports.slurm_job import SlurmJob

NextStep: TypeAlias = Callable[[JobMessage | None, LiveJobMessage | None, SlurmJob | None, str], str]


@value(kw_only=True)
class Words:
    """What people read that depends on what runs the jobs."""

    noun: str = "job"

    phases: Mapping[str, str]
    """Behind a job's name."""
    not_started: str
    """Jobs for which GPUs are taken."""
    no_nodes: str
    how_to_change: str
    """How jobs are cancelled or held."""
    how_to_cancel: str
    """Before the number of a job."""
    options: str = ""
    """With which commands of gandiva ask about these jobs, after a blank."""
    next_step: NextStep
    """What the user can do about a job; empty: nothing. The last argument: why Slurm did not start it at the
    last attempt (`not_started_by_slurm`)."""


_REASON = re.compile(r"\(reason: (.+)\)$")

_BY_PHASE = {
    "queued": "nothing: it starts when there is room. Fewer GPUs, less --mem, or no --nodelist and "
    "--gandiva-gpu-types, find room earlier",
    "starting": "nothing: Slurm starts it within seconds",
    **dict.fromkeys(("yielded", "suspended"), "nothing: it goes on by itself when its turn comes"),
    **dict.fromkeys(("suspending", "resuming"), "nothing: a switch takes seconds"),
    "stuck": "ask your administrators: gandiva status and the controller's log say what holds its GPUs; "
    "scancel frees them",
    "unknown": "ask your administrators: gandiva status names the node. The job itself may well be training",
}
_WAITS = ("ineligible", "yielded", "suspended")
_HELD_UNTIL = "2099-12-31"
"""A job that its user holds has a later begin time (docs/slurm-facts.md)."""
_BY_STATE = {
    "FAILED": "see the end of its output",
    "NODE_FAIL": "submit it again, from its last checkpoint",
    "TIMEOUT": "submit it again with more --time; time off the GPUs does not count",
    "OUT_OF_MEMORY": "submit it again with more --mem: what a suspended job had on GPUs is in host memory",
}


def not_started_by_slurm(events: Sequence[EventMessage]) -> str:
    """Slurm's reason, where it did not start the job at the last attempt; else empty."""
    last = events[-1] if events else None
    match = _REASON.search(last.message) if last is not None and last.kind == "place-failed" else None
    return match[1] if match else ""


def _about_reason(reason: str) -> str:
    if reason.startswith(LIMIT_REASONS):
        return (
            f"a limit of your account or QOS is reached ({reason}): it starts when others of your jobs have "
            "ended. Suspended ones count, and a job on a shared node counts a shard of each GPU "
            "there: sacctmgr show assoc where user=$USER, sacctmgr show qos"
        )
    if "eserved" in reason or reason in ("Priority", "Resources"):
        return (
            f"Slurm keeps the node for a reservation or for an ordinary job that waits ({reason}): a shorter "
            "--time may start it earlier; it is tried on other nodes that it may use, too"
        )
    if reason.startswith((*JOB_REASONS, "BadConstraints")):
        return (
            f"waiting alone does not help, by Slurm's reason ({reason}): change its --time, --partition, "
            "--account, --qos, --licenses or --constraint, or ask your administrators"
        )
    return ""


def cannot_be_suspended(failed: FailedSuspends) -> str:
    """Since when, why, and what follows, as text."""
    follows = {"requeue": "it is requeued next", "cancel": "it is cancelled next"}.get(failed.way_out)
    tried = f"since {units.moment(failed.since)}, {units.several(failed.tries, 'attempt')}"
    return f"could not be suspended {tried}: {failed.why}; {follows or 'it keeps its GPUs'}"


def _off_bad_gpus(live: LiveJobMessage) -> str:
    """A job that is bound to GPUs on which it cannot go on."""
    again = f"scancel {live.job_id}, and submit it again"
    if live.may_requeue:
        again = f"scontrol requeue {live.job_id} starts it again elsewhere"
    moves = "where the policy moves jobs (balance) it goes on elsewhere by itself; " * live.may_migrate
    return (
        f"{moves}when the GPU is in order it goes on there: ask your administrators. {again}, from its last "
        "checkpoint if it has one"
    )


def next_step(
    job: JobMessage | None, live: LiveJobMessage | None, slurm: SlurmJob | None, refused: str = ""
) -> str:
    """Of Slurm's `Words`."""
    if live is None:
        return _BY_STATE.get(job.state.split()[0] if job and job.state else "", "")
    if slurm is not None and slurm.reason == ADMIN_HOLD and live.phase in _WAITS:
        return "ask the operator who holds it"
    if live.phase == "ineligible":
        if RELEASE in live.reason or (slurm is not None and slurm.eligible_time[:10] >= _HELD_UNTIL):
            return f"scontrol release {live.job_id}"
        return "nothing: Gandiva schedules it once Slurm would start it"
    if live.phase in ("queued", "starting") and (advice := _about_reason(refused)):
        return advice
    if live.phase in ("suspended", "yielded") and len(live.binding) - len(live.bad_gpus) < live.gpus:
        return _off_bad_gpus(live)
    if live.phase == "running" and live.bad_gpus.keys() & live.running_on:
        return "nothing: should the job fail, submit it again; it starts on other GPUs"
    if live.phase == "running" and (live.failed_suspends is not None or not live.suspendable):
        return (
            "call step() of its session between mini-batches, or submit it with --gandiva-suspend=requeue: "
            "until it can be suspended no other job gets its GPUs"
        )
    return _BY_PHASE.get(live.phase, "")


SLURM = Words(
    phases={
        "yielded": "is off its GPUs and waits for its turn (Slurm says RUNNING)",
        "completing": "is over; Slurm is cleaning up",
    },
    not_started="Have GPUs, and Slurm has not started them yet",
    no_nodes="Slurm has no GPU nodes for Gandiva (feature gandiva_<model>).",
    how_to_change="cancel with scancel, hold with scontrol hold",
    how_to_cancel="To cancel it (you, or an operator): scancel",
    next_step=next_step,
)
