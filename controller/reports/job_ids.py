# SPDX-License-Identifier: GPL-2.0-or-later
"""States and jobs as users name them to sacct: `12` (of an array all tasks), `12_3`, `12_[0-3,7]`; jobs also
as it writes them: `12+1`, a component of a heterogeneous job."""

from collections.abc import Sequence
from contextlib import suppress

from controller.cluster.gres import index_ranges
from controller.cluster.records import whole_part
from controller.errors import GandivaError
from controller.reports.sacct import Accounting, CommandFailed, ask_sacct
from controller.reports.slurm_job import Scontrol, SlurmJob

_WORDS = (
    "BF=BOOT_FAIL CA=CANCELLED CD=COMPLETED CG=COMPLETING DL=DEADLINE F=FAILED NF=NODE_FAIL "
    "OOM=OUT_OF_MEMORY PD=PENDING PR=PREEMPTED R=RUNNING RQ=REQUEUED RS=RESIZING RV=REVOKED "
    "S=SUSPENDED TO=TIMEOUT"
)
CODES = dict(word.split("=") for word in _WORDS.split())
"""Slurm's job states by the codes that sacct -s takes."""


def numbers(
    words: Sequence[str], scontrol: Scontrol, *, accounting: bool = True
) -> tuple[tuple[int, ...], Sequence[str]]:
    """Slurm's numbers of these jobs, by sacct, and by scontrol what that does not know; and a sentence for
    each word that neither knows. `accounting`: whether to ask sacct. Raises GandivaError where they know
    none; a plain number stands for itself too."""
    problems = []
    found, said = {int(word) for word in words if word.isdecimal()}, dict[int, Accounting]()
    with suppress(CommandFailed):
        said.update(ask_sacct([*{int(_whole(word)) for word in words}]) if accounting else {})
    for word in words:
        chosen = {number for number, known in said.items() if _names(word, number, known.job_id)}
        chosen = chosen or {*named(word, scontrol)}
        if not chosen and not word.isdecimal():
            problems.append(f"Slurm knows no job {word}: neither sacct nor scontrol here")
        found |= chosen
    if not found:
        raise GandivaError("; ".join(problems))
    return tuple(sorted(found)), problems


def _whole(word: str) -> str:
    """The number that a word begins with: of an array, or of a heterogeneous job."""
    return word.partition("+")[0].partition("_")[0]


def named(word: str, scontrol: Scontrol) -> dict[int, SlurmJob]:
    """The jobs that scontrol knows by this word."""
    return {job.job_id: job for job in scontrol.jobs(_whole(word)) if _names(word, job.job_id, job.part)}


def _names(word: str, number: int, name: str) -> bool:
    """Whether a word names a job. `name`: the job's own, as sacct writes it: `12`, `12_3`, `12+1`, or for
    tasks that wait together `12_[4-9%2]`."""
    if word in (str(number), name, name.partition("+")[0]):
        return True
    array, _, asked = word.partition("_")
    of, _, tasks = name.partition("_")
    if array != of or not tasks:
        return False
    wanted = _ranges(asked)
    return not asked or any(task in span for own in _ranges(tasks) for task in own for span in wanted)


def _ranges(tasks: str) -> list[range]:
    """Of `3`, `[0-3,7]`; none where they make no sense."""
    try:
        return index_ranges(whole_part(tasks.strip("[]")))
    except ValueError:
        return []


def parse_state(word: str) -> str:
    """`CD`, `completed` -> `COMPLETED`. Raises GandivaError."""
    state = CODES.get(word.strip().upper(), word.strip().upper())
    if state in CODES.values():
        return state
    known = ", ".join(f"{code} ({name})" for code, name in CODES.items())
    raise GandivaError(f"{word[:40]!r} is not a job state; the states are {known}")
