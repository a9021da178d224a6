# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's job states: names, and the codes that sacct -s takes."""

from __future__ import annotations

from controller.errors import GandivaError
from controller.slurm.port import JobState
from controller.slurm.states import job_state

CODES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}


class InvalidState(GandivaError):
    """Not a state of Slurm's."""


def parse_state(word: str) -> str:
    """`CD`, `completed` -> `COMPLETED`. Raises InvalidState."""
    upper = word.strip().upper()
    if upper in CODES:
        return CODES[upper]
    if upper in CODES.values():
        return upper
    known = ", ".join(f"{code} ({name})" for code, name in CODES.items())
    raise InvalidState(f"{word[:40]!r} is not a job state; the states are {known}")


def is_final(state: str) -> bool:
    """Whether a job in this state (as sacct words it, `CANCELLED by 1000`) is over."""
    word = state.partition(" ")[0]
    return bool(word) and job_state((word,)) in (None, JobState.ENDED)
