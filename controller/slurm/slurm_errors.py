# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's error numbers and messages, sorted by what the caller can do about them."""

from __future__ import annotations

from controller.errors import ClusterError, ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import JobId

INVALID_JOB_ID = 2017
TRANSITION_STATE = 2020

_TRY_AGAIN = frozenset(
    {
        0,  # the number got lost between libslurm and here
        1900,  # no change in data
        TRANSITION_STATE,
        2027,  # standby mode
        2131,  # use the backup controller
        4034,  # too many requests
    }
)

_UNKNOWN_JOB_WORDS = ("invalid job id",)
_TRY_AGAIN_WORDS = (
    "unable to contact slurm controller",
    "unable to send message",
    "communication",
    "connection refused",
    "connection timed out",
    "connection reset",
    "could not load slurm configuration",
    "could not establish a configuration source",
    "error receiving",
    "message authentication",
    "munge",
    "protocol authentication",
    "retry later",
    "slurm backup controller in standby",
    "slurmctld is currently",
    "socket timed out",
    "temporarily",
    "transition state",
    "unexpected message received",
    "zero bytes were transmitted",
)


def error_of_number(number: int, message: str, what: str, job_id: JobId | None = None) -> ClusterError:
    """The error for a number of slurm_errno.h, or for a system error number (below 1,000). `what`: what was
    asked, for people."""
    said = f"{what}: Slurm says: {message} (error {number})"
    if number == INVALID_JOB_ID:
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
    if any(words in lower for words in _UNKNOWN_JOB_WORDS):
        return UnknownJob(f"job {job_id}: {said}")
    return ClusterRefused(said)
