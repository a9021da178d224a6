# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm jobs whose GPUs a study uses: what they have, until when, and whether they are over.

A **place** is what trials live and die with: one start of a Slurm job, or one boot of a machine."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime

from controller.cluster.family import here
from controller.cluster.hostlist import expand
from controller.errors import ClusterUnavailable, GandivaError
from controller.model import value

SECONDS = 15.0
"""The longest time for one answer of Slurm's."""
_FIELD = re.compile(r"\b(JobState|EndTime)=(\S+)")
_PART = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)")
_LIVES = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED"})


@value
class Part:
    """What a job has of one node, besides GPUs."""

    cpus: int
    memory_bytes: int


@value
class Allocation:
    """A job as Slurm has it."""

    state: str
    ends_at: float | None
    """Seconds since the epoch; None: it has no limit that is known."""
    nodes: Mapping[str, Part]


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The one of this process; None: it is in none, or there is no srun here. Raises GandivaError: Slurm does
    not say what is in it."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id or shutil.which("srun", path=environ.get("PATH")) is None:
        return None
    found = ask(job_id)
    if found is None or not found.nodes:
        raise GandivaError(
            f"scontrol show job --details {job_id} names no nodes: is this process in that job?"
        )
    return found


def ask(job_id: str) -> Allocation | None:
    """A job; None: Slurm has forgotten it. Raises ClusterUnavailable."""
    command = ["scontrol", "--oneliner", "show", "job", "--details", job_id]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterUnavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode == 0:
        return read(done.stdout)
    if "Invalid job id" in done.stderr:
        return None
    raise ClusterUnavailable(f"{' '.join(command)}: {done.stderr.strip()[:200]}")


def read(said: str) -> Allocation:
    """What `scontrol show job --details` prints of a job."""
    fields = dict(_FIELD.findall(said))
    nodes = {}
    for names, cpus, mebibytes in _PART.findall(said):
        for name in expand(names):
            nodes[name] = Part(_count(cpus), int(mebibytes) << 20)
    return Allocation(fields.get("JobState", ""), _time(fields.get("EndTime", "")), nodes)


def ends_at(environ: Mapping[str, str]) -> float | None:
    """When Slurm ends this process: seconds since the epoch. None: it does not, or that is not known now."""
    try:
        found = ask(environ["SLURM_JOB_ID"]) if environ.get("SLURM_JOB_ID") else None
    except ClusterUnavailable:
        return None
    return None if found is None else found.ends_at


def place(environ: Mapping[str, str]) -> str:
    """That of this process."""
    if job_id := environ.get("SLURM_JOB_ID"):
        return f"job {job_id}.{environ.get('SLURM_RESTART_COUNT') or 0}"
    return "host {}.{}".format(*here())


def is_over(where: str, now_in: str) -> bool:
    """Whether nothing lives in a place any more; `now_in`: that of this process. Raises GandivaError:
    something may, or it cannot be known."""
    kind, _, name = where.partition(" ")
    own_kind, _, own_name = now_in.partition(" ")
    if where == now_in:
        return False
    name, own_name = name.rpartition(".")[0], own_name.rpartition(".")[0]
    if kind == own_kind and name == own_name:
        return True  # the same job has been requeued, the same machine was started again
    if kind == "job":
        found = ask(name)
        if found is None or found.state not in _LIVES:
            return True
    raise GandivaError(f"trials may live on {kind} {name}: go on with the study there, or when it is over")


def ends(where: str, nodes: Iterable[str]) -> bool:
    """Whether Slurm is ending the job of this place, or has taken one of these nodes from it. Raises
    ClusterUnavailable."""
    kind, _, name = where.partition(" ")
    if kind != "job":
        return False
    found = ask(name.rpartition(".")[0])
    return found is None or found.state != "RUNNING" or not found.nodes.keys() >= {*nodes}


def _count(ranges: str) -> int:
    """Of `0-3,8`."""
    spans = (span.partition("-") for span in ranges.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None  # Unknown
