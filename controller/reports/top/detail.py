# SPDX-License-Identifier: GPL-2.0-or-later
"""One job in the live view: its explanation, its output file, and the end of that.

The controller, slurmctld and home folders on a network can be slow: only the poller's thread asks them.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controller.api.client import ApiClient
from controller.api.messages import ExplainMessage
from controller.errors import GandivaError
from controller.reports.advice import SLURM, Words
from controller.reports.explain import explain
from controller.reports.report import account
from controller.reports.sacct import Accounting, CommandFailed
from controller.reports.slurm_job import SlurmJob, ask_slurm
from controller.reports.text import clean

TAIL_LINES = 12
_TAIL_BYTES = 16 << 10
_ROWS = 6


@dataclass(frozen=True, slots=True)
class Detail:
    job_id: int
    answer: ExplainMessage | None = None
    problem: str = ""
    """Why there is no answer."""
    slurm: SlurmJob | None = None
    output_path: str = ""
    output: tuple[str, ...] = ()
    """Its last lines, or why they cannot be shown."""
    accounting: Accounting | None = None
    """Of a job that is over."""


def ask(client: ApiClient, job_id: int, trials: Path | None = None) -> Detail:
    """Ask the controller, Slurm, and the job's output file. `trials`: the folder of a study's trials, about
    which Slurm is not asked. Never raises for what they answer."""
    try:
        answer = client.explain(job_id)
    except GandivaError as error:
        return Detail(job_id, problem=str(error))
    if trials is not None:
        path = str(trials / f"{job_id}.out")
        return Detail(job_id, answer, output_path=path, output=_tail(path))
    slurm = next((one for one in ask_slurm(str(job_id)) if one.job_id == job_id), None)
    path, accounting = slurm.output_path if slurm else "", None
    if answer.live is None and answer.job is not None:
        with suppress(CommandFailed):
            accounting = account([answer.job]).get(job_id)
    return Detail(job_id, answer, "", slurm, path, _tail(path) if path else (), accounting)


def lines(detail: Detail, columns: int, words: Words = SLURM) -> Iterator[str]:
    if detail.answer is None:
        yield detail.problem or f"Asking about {words.noun} {detail.job_id}"
        return
    yield from explain(
        detail.answer,
        rows=_ROWS,
        columns=columns,
        slurm=detail.slurm,
        accounting=detail.accounting,
        words=words,
    )
    if detail.answer.live is not None:
        yield ""
        yield f"{words.how_to_cancel} {detail.job_id}"
    if detail.output_path:
        yield ""
        yield f"Output, {clean(detail.output_path)}"
        yield from (f"  {clean(line)}" for line in detail.output)


def _tail(path: str) -> tuple[str, ...]:
    try:
        # Not opened before it is known to be a file: the job's user may have put a pipe or a device there.
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(place)
            if not stat.S_ISREG(status.st_mode):
                return ("(not a file)",)
            descriptor = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(place)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, status.st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return (f"(cannot be read here: {error.strerror})",)
    # Progress bars return to the start of their line: what was written last counts.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].expandtabs() for line in text.rstrip("\n").split("\n")]
    return tuple(lines[-TAIL_LINES:]) if text else ("(empty)",)
