# SPDX-License-Identifier: GPL-2.0-or-later
"""Final states, exit codes and array indices of jobs from slurmdbd, through sacct.

Reports go without them where sacct is missing or does not answer in time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

MAX_JOBS_PER_CALL = 500
MAX_OUTPUT_BYTES = 8 << 20
_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "End")


@dataclass(frozen=True, slots=True)
class Accounting:
    """One job as slurmdbd has it."""

    job_id: str
    """As sacct writes it: `12_3` for an array task."""
    state: str
    exit_code: str
    end_time: float | None


class SacctFailed(Exception):
    """No answer from sacct; the text says why."""


def ask_sacct(
    job_ids: Sequence[int], *, program: str = "sacct", deadline_seconds: float = 5.0
) -> Mapping[int, Accounting]:
    """The jobs slurmdbd knows. Raises SacctFailed where sacct is not there, fails or takes too long."""
    path = shutil.which(program)
    if path is None:
        raise SacctFailed(f"there is no {program} here")
    found: dict[int, Accounting] = {}
    for begin in range(0, len(job_ids), MAX_JOBS_PER_CALL):
        chunk = job_ids[begin : begin + MAX_JOBS_PER_CALL]
        found |= dict(_parse(_run(path, chunk, deadline_seconds)))
    return found


def _run(path: str, job_ids: Sequence[int], deadline_seconds: float) -> str:
    command = [path, "-n", "-P", "-X", "--format=" + ",".join(_FIELDS), "-j", ",".join(map(str, job_ids))]
    # The user's own sacct settings would change its output.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SACCT_")}
    environment |= {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SacctFailed(f"sacct did not answer within {deadline_seconds:g} s") from None
    except OSError as error:
        raise SacctFailed(f"sacct cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SacctFailed(f"sacct failed: {(why[-1] if why else f'exit code {done.returncode}')[:200]}")
    if len(done.stdout) > MAX_OUTPUT_BYTES:
        raise SacctFailed(f"sacct printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return done.stdout.decode("utf-8", "replace")


def _parse(output: str) -> Iterator[tuple[int, Accounting]]:
    for line in output.splitlines():
        values = line.split("|")
        if len(values) == len(_FIELDS) and values[0].isdigit():
            raw, job_id, state, exit_code, end = values
            yield int(raw), Accounting(job_id, state, exit_code, _time(end))


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None  # Unknown, None
