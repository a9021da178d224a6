# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs that Slurm keeps for a job on its way: a small job of the controller's own holds a shard of each.

A reservation of GRES (`scontrol create reservation … TRES=gres/gpu=1`) takes all free cores of the node, and
says neither which of its GPUs it takes, nor may a job be on the node meanwhile (docs/slurm-facts.md,
Reservations). An allocation without a process (`salloc --no-shell`) takes a shard of exactly these GPUs, so
that Slurm gives none of them to an ordinary job, and leaves room for the job that they are kept for.
"""

import logging
import math
import re
from collections.abc import Sequence

from controller.cluster.gres import binding_of
from controller.cluster.hostlist import expand
from controller.model import GpuSet, JobId, value

log = logging.getLogger(__name__)

FIRST_PRIORITY = 4_000_000_000
"""Before every other job: less than Slurm's own largest numbers, which mean something else."""
WAIT_SECONDS = 2
"""A reservation that does not begin within this time is not made."""
SQUEUE = (
    "squeue",
    "--me",
    "--noheader",
    "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED",
    "--format=%i|%j|%N|%b",
)

BUSY = "Unable to allocate resources: Connection timed out"
"""What salloc says when the allocation does not begin in time."""

_NAME = re.compile(r"gandiva-reservation-([0-9]{1,10})")
_MEMORY = "1M"


@value
class Reservation:
    """A job of the controller's own."""

    id: JobId
    job_id: JobId
    """The job that the GPUs are kept for."""
    gpus: GpuSet
    """Empty: it waits for them."""


def name_of(job_id: JobId) -> str:
    """Of the controller's own job."""
    return f"gandiva-reservation-{job_id}"


def salloc(
    job_id: JobId, partition: str, gres: Sequence[str], nodes: Sequence[str], seconds: float
) -> list[str]:
    """The command that makes it, or fails. Slurm ends it after so many seconds, rounded up to minutes."""
    return [
        "salloc",
        "--no-shell",
        "--quiet",
        f"--immediate={WAIT_SECONDS}",
        f"--priority={FIRST_PRIORITY}",
        f"--job-name={name_of(job_id)}",
        f"--partition={partition}",
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        "--ntasks-per-node=1",
        f"--mem={_MEMORY}",
        f"--time={math.ceil(seconds / 60)}",
        f"--gres={','.join(f'{each}:1' for each in gres)}",
    ]


def parse(text: str) -> tuple[Reservation, ...]:
    """What SQUEUE prints: the reservations among the controller's own jobs."""
    found = []
    for line in text.splitlines():
        own, name, nodes, gres = (line.split("|") + [""] * 4)[:4]
        match = _NAME.fullmatch(name)
        if match is None or not own.isdigit():
            continue
        try:
            gpus = binding_of(gres, tuple(expand(nodes))) if nodes else frozenset()
        except ValueError as error:
            log.warning("job %s: reservation %s: %s; counts as without GPUs", match[1], own, error)
            gpus = frozenset()
        found.append(Reservation(JobId(int(own)), JobId(int(match[1])), gpus))
    return tuple(found)
