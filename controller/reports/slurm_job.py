# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as `scontrol show job` on this host has it. Some of its text comes from users."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from controller.reports.sacct import DEADLINE_SECONDS, CommandFailed, run_command

MOST_ASKED = 50
"""More jobs are not asked for one by one."""
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z/:]*)=(.*?)(?= [A-Z][A-Za-z/:]*=|\s*$)")
_PARTS = (("ArrayJobId", "_", "ArrayTaskId"), ("HetJobId", "+", "HetJobOffset"))


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job of `scontrol show job`; fields that are missing there are empty."""

    job_id: int
    name: str = ""
    user: str = ""
    state: str = ""
    reason: str = ""
    """Slurm's reason why it is pending."""
    eligible_time: str = ""
    part: str = ""
    """`ARRAY_INDEX` of an array's task, `JOB+OFFSET` of a heterogeneous job's component; empty for others."""
    output_path: str = ""
    gandiva: bool = False
    """Its admin comment is a request to Gandiva."""


class Scontrol:
    """Jobs as scontrol has them, for one command: no job is asked for twice, and no more once scontrol took
    DEADLINE_SECONDS for nothing, or was asked MOST_ASKED times."""

    def __init__(self) -> None:
        self._said: dict[str, list[SlurmJob]] = {}
        self._left_seconds = DEADLINE_SECONDS

    def jobs(self, job: str) -> list[SlurmJob]:
        """As `ask_slurm`."""
        if job not in self._said and self._left_seconds > 0 and len(self._said) < MOST_ASKED:
            began = time.monotonic()
            self._said[job] = ask_slurm(job)
            self._left_seconds -= 0.0 if self._said[job] else time.monotonic() - began
        return self._said.get(job, [])


def ask_slurm(job: str) -> list[SlurmJob]:
    """The jobs that Slurm knows by this number (`12`: all tasks of an array; `12_3`: one). Empty where it
    knows none or does not answer: it purges jobs soon after their end, and not all hosts have scontrol."""
    try:
        output = run_command(["scontrol", "--oneliner", "show", "job", job], DEADLINE_SECONDS)
    except CommandFailed:
        return []
    return list(filter(None, map(_parse, output.splitlines())))


def _parse(line: str) -> SlurmJob | None:
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        # A job's name may imitate the fields behind it; the result is shown to people and decides nothing.
        fields.setdefault(name, value)
    if not fields.get("JobId", "").isdecimal():
        return None
    parts = (f"{fields[of]}{sign}{fields.get(n, '?')}" for of, sign, n in _PARTS if fields.get(of))
    return SlurmJob(
        int(fields["JobId"]),
        fields.get("JobName", ""),
        fields.get("UserId", "").split("(")[0],
        fields.get("JobState", ""),
        _word(fields, "Reason"),
        _word(fields, "EligibleTime"),
        next(parts, ""),
        fields.get("StdOut", ""),
        fields.get("AdminComment", "").startswith("gandiva:"),
    )


def _word(fields: Mapping[str, str], name: str) -> str:
    value = fields.get(name, "")
    return "" if value in ("None", "(null)", "Unknown") else value
