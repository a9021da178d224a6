# SPDX-License-Identifier: GPL-2.0-or-later
"""Running Slurm's commands: clean environment, no shell, killed when its caller is cancelled. And what
Slurm's errors mean: numbers and messages, sorted by what the caller can do about them."""

import asyncio
import contextlib

from controller.errors import ClusterError, ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import JobId
from gandiva._processes import slurm_environment

TOO_MUCH = "has this host too little memory, or the controller too many processes or open files?"
_REAP_SECONDS = 1.0


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
            env=slurm_environment(),
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | PermissionError)
        advice = "install Slurm's client commands on this host" if missing else TOO_MUCH
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


_INVALID_JOB_ID = 2017
_TRY_AGAIN = frozenset(
    {
        0,  # the number got lost between libslurm and here
        1900,  # no change in data
        2020,  # transition state
        2027,  # standby mode
        2131,  # use the backup controller
        4034,  # too many requests
    }
)
_TRY_AGAIN_WORDS = (
    "unable to contact slurm controller", "unable to send message", "communication", "connection refused",
    "connection timed out", "connection reset", "could not load slurm configuration",
    "could not establish a configuration source", "error receiving", "message authentication", "munge",
    "protocol authentication", "retry later", "slurm backup controller in standby", "slurmctld is currently",
    "socket timed out", "temporarily", "transition state", "unexpected message received",
    "zero bytes were transmitted",
)  # fmt: skip


def error_of_number(number: int, message: str, what: str, job_id: JobId | None = None) -> ClusterError:
    """The error for a number of slurm_errno.h, or for a system error number (below 1,000). `what`: what was
    asked, for people."""
    said = f"{what}: Slurm says: {message} (error {number})"
    if number == _INVALID_JOB_ID:
        return UnknownJob(f"job {job_id}: {said}")
    unreachable = number < 1900 or 5000 <= number < 7000
    return ClusterUnavailable(said) if number in _TRY_AGAIN or unreachable else ClusterRefused(said)


def error_of_text(text: str, what: str, job_id: JobId | None = None) -> ClusterError:
    """The error for what a Slurm command printed. Commands print no numbers."""
    line = " ".join(text.split())[:500] or "nothing, but failed"
    said = f"{what}: Slurm says: {line}"
    lower = line.lower()
    if any(words in lower for words in _TRY_AGAIN_WORDS):
        return ClusterUnavailable(said)
    if "invalid job id" in lower:
        return UnknownJob(f"job {job_id}: {said}")
    return ClusterRefused(said)
