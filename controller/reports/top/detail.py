# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known of one job: why it is where it is, where its output goes, and the end of that.

Slow parts (the controller, slurmctld, a home folder on a network) are asked by the poller's thread only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from controller.api.client import ApiClient
from controller.api.messages import ExplainMessage
from controller.errors import GandivaError
from controller.reports.explain import explain
from controller.reports.slurm_job import SlurmJob, ask_slurm
from controller.reports.text import clean

TAIL_LINES = 12
_TAIL_BYTES = 16 << 10
_ROWS = 6


@dataclass(frozen=True, slots=True)
class Detail:
    """One job, as it was when it was asked about."""

    job_id: int
    answer: ExplainMessage | None = None
    trouble: str = ""
    """Why there is no answer."""
    slurm: SlurmJob | None = None
    output: tuple[str, ...] = ()
    """Its last lines, or why they cannot be shown."""


def ask(client: ApiClient, job_id: int) -> Detail:
    """Ask the controller, Slurm, and the job's output file. Never raises for what they answer."""
    try:
        answer = client.explain(job_id)
    except GandivaError as error:
        return Detail(job_id, trouble=str(error))
    slurm = next((one for one in ask_slurm(str(job_id)) if one.job_id == job_id), None)
    path = slurm.output_path if slurm else ""
    return Detail(job_id, answer, "", slurm, _tail(path) if path else ())


def lines(detail: Detail, columns: int) -> Iterator[str]:
    """As text."""
    if detail.answer is None:
        yield detail.trouble or f"Asking about job {detail.job_id}"
        return
    yield from explain(detail.answer, rows=_ROWS, columns=columns, slurm=detail.slurm)
    live = detail.answer.live
    if live is not None:
        yield ""
        yield f"To cancel it (you, or an operator): scancel {detail.job_id}"
    if detail.slurm is not None and detail.slurm.output_path:
        yield ""
        yield f"Output, {clean(detail.slurm.output_path)}"
        yield from (f"  {clean(line)}" for line in detail.output)


def _tail(path: str) -> tuple[str, ...]:
    try:
        # Looked at before it is opened: what the job's user has put there may be a pipe, which would never
        # end, or a device that does something when it is opened.
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
    # Progress bars go back to the start of their line: what stands there last counts.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].expandtabs() for line in text.rstrip("\n").split("\n")]
    return tuple(lines[-TAIL_LINES:]) if text else ("(empty)",)
