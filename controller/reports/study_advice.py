# SPDX-License-Identifier: GPL-2.0-or-later
"""What a user can do about a trial of a study."""

import shlex
from pathlib import Path

from controller.api.messages import JobMessage, LiveJobMessage
from controller.reports.advice import Words
from controller.reports.slurm_job import SlurmJob

_AGAIN = "'gandiva run' with --retry failed starts it again"


def study_words(study: Path) -> Words:
    """About the trials of the study in this folder."""
    options = f" --study {shlex.quote(str(study))}"
    stop = f"gandiva trials stop{options}"

    def next_step(
        job: JobMessage | None, live: LiveJobMessage | None, _slurm: SlurmJob | None, _refused: str
    ) -> str:
        if live is None:
            if job is None or job.state != "FAILED":
                return ""
            return f"see the end of its output, {study}/trials/{job.job_id}.out; {_AGAIN}"
        ends = f"{stop} {live.job_id} ends it"
        if live.phase in ("suspended", "yielded") and len(live.binding) - len(live.bad_gpus) < live.gpus:
            return f"when the GPU is in order it goes on there; {ends}"
        if live.phase == "running" and live.bad_gpus.keys() & live.running_on:
            return f"nothing: should it fail, {_AGAIN}, on other GPUs"
        if live.phase == "running" and (live.failed_suspends is not None or not live.suspendable):
            return (
                'call step() of its session between mini-batches, or say suspend = "requeue" in the study '
                "file: until it can be suspended no other trial gets its GPUs"
            )
        return {
            "queued": "nothing: it starts when there is room. With fewer gpus, less memory or no gpu_types "
            "in the study file a trial finds room earlier",
            "starting": "nothing: it starts within seconds",
            **dict.fromkeys(("yielded", "suspended"), "nothing: it goes on by itself when its turn comes"),
            **dict.fromkeys(("suspending", "resuming"), "nothing: a switch takes seconds"),
            "stuck": f"gandiva status{options} and {study}/log say what holds its GPUs; {ends}",
            "unknown": f"gandiva status{options} and {study}/log say why. It may well be training",
        }.get(live.phase, "")

    return Words(
        noun="trial",
        phases={
            "yielded": "is off its GPUs and waits for its turn",
            "completing": "is over; its processes are being ended",
        },
        not_started="Have GPUs, and have not started yet",
        no_nodes="The study has no GPUs.",
        how_to_change="stop trials with gandiva trials stop",
        how_to_cancel=f"To stop it: {stop}",
        options=options,
        next_step=next_step,
    )
