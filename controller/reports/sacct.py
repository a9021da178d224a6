# SPDX-License-Identifier: GPL-2.0-or-later
"""Final states, exit codes and array indices of jobs from slurmdbd, through sacct."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from controller.cluster.states import is_final as is_final
from controller.errors import GandivaError
from gandiva._processes import slurm_environment

DEADLINE_SECONDS = 5.0
MAX_JOBS_PER_CALL = 500
MAX_OUTPUT_BYTES = 8 << 20
_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "End", "Submit")


class CommandFailed(GandivaError):
    """No answer from one of Slurm's commands; the text says why."""


class NoCommand(CommandFailed):
    """This host does not have it."""


@dataclass(frozen=True, slots=True)
class Accounting:
    job_id: str
    """As sacct writes it: `12_3` for an array task."""
    state: str
    exit_code: str
    end_time: float | None
    submit_time: float | None = None
    """Of a requeued job: of the requeue."""


def ask_sacct(job_ids: Sequence[int]) -> Mapping[int, Accounting]:
    """The jobs slurmdbd knows; of a number that was given out twice, the later one. Raises CommandFailed
    where sacct is not there, fails or takes too long."""
    found = _records([str(job_id) for job_id in job_ids], "-X")
    return {int(raw): record for raw, record in found.items() if raw.isdigit()}


def ask_sacct_of_steps(steps: Mapping[int, str]) -> Mapping[int, Accounting]:
    """The trials that were steps, such as `77.4`. Raises as `ask_sacct` does."""
    found = _records([*steps.values()])
    known = {number: found[step] for number, step in steps.items() if step in found}
    return {number: replace(record, job_id=str(number)) for number, record in known.items()}


def _records(names: Sequence[str], *options: str) -> dict[str, Accounting]:
    found = {}
    for line in _lines(names, [*options, "--format=" + ",".join(_FIELDS)]):
        values = line.split("|")
        if len(values) == len(_FIELDS):
            raw, job_id, state, exit_code, end, submit = values
            found[raw] = Accounting(job_id, state, exit_code, _time(end), _time(submit))
    return found


def last_ends(job_ids: Sequence[int]) -> Mapping[int, float]:
    """When the last of the steps that Slurm itself makes ended, for jobs that are over. The end of a job that
    ended while it was suspended is in them alone: the job's own is its last suspension. Raises as
    `ask_sacct` does."""
    found: dict[int, float] = {}
    steps = [f"{job_id}.batch,{job_id}.extern" for job_id in job_ids]
    for line in _lines(steps, ["--format=JobIDRaw,End"]):
        name, _, end = line.partition("|")
        job_id = name.partition(".")[0]
        if job_id.isdigit() and (ended := _time(end)) is not None:
            found[int(job_id)] = max(ended, found.get(int(job_id), ended))
    return found


def _lines(jobs: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    for begin in range(0, len(jobs), MAX_JOBS_PER_CALL):
        chunk = ",".join(jobs[begin : begin + MAX_JOBS_PER_CALL])
        output = run_command(["sacct", "-n", "-P", *options, "-j", chunk], DEADLINE_SECONDS)
        if len(output) > MAX_OUTPUT_BYTES:
            raise CommandFailed(f"sacct printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
        yield from output.splitlines()


def run_command(command: Sequence[str], deadline_seconds: float) -> str:
    """What one of Slurm's commands prints, times in UTC. Raises CommandFailed."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            env=slurm_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_seconds,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{name} did not answer within {deadline_seconds:g} s") from None
    except FileNotFoundError:
        raise NoCommand(f"there is no {command[0]} here: run this on a host with Slurm's commands") from None
    except OSError as error:
        raise CommandFailed(f"{name} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CommandFailed(f"{name} failed: {(why[-1] if why else f'exit code {done.returncode}')[:200]}")
    return done.stdout.decode("utf-8", "replace")


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None  # Unknown, None
