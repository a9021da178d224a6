# SPDX-License-Identifier: GPL-2.0-or-later
"""Running Slurm's commands: clean environment, no shell, killed when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from controller.errors import ClusterUnavailable
from controller.model import JobId
from controller.slurm.slurm_errors import error_of_text

_KEPT = ("HOME", "LD_LIBRARY_PATH", "PATH", "SLURM_CONF", "TZ")
"""Anything else (SQUEUE_STATES, SLURM_JOB_ID, …) would change what the commands do or print."""

_REAP_SECONDS = 1.0


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment Slurm's commands run in."""
    kept = {name: environment[name] for name in _KEPT if name in environment}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, "LC_ALL": "C"}


async def run(*argv: str, what: str, job_id: JobId | None = None) -> str:
    """Run a command and return what it printed. `what`: what it does, for error messages.

    Cancelling the call kills the command; it may have taken effect all the same. Raises ClusterUnavailable
    (also where there is no such command), ClusterRefused, or UnknownJob.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(),
        )
    except OSError as error:
        advice = "has this host too little memory, or the controller too many processes or open files?"
        if isinstance(error, FileNotFoundError | PermissionError):
            advice = "install Slurm's client commands on this host"
        raise ClusterUnavailable(f"{what}: cannot run {argv[0]}: {error.strerror}; {advice}") from error
    try:
        output, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _REAP_SECONDS)
        raise
    if process.returncode != 0:
        raise error_of_text((errors or output).decode(errors="replace"), what, job_id)
    return output.decode(errors="replace")
