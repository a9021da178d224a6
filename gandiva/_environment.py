# SPDX-License-Identifier: MIT
"""What the process can know about its place in the job; one function per fact."""

import os
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Sequence

MAX_WORLD_SIZE = 65536
BATCH_STEP_IDS = ("-5", "4294967291")


class Place(NamedTuple):
    """Which of how many ranks this process is."""

    rank: int
    world_size: int


def trial(environ: Mapping[str, str]) -> str:
    """The number of the trial of `gandiva run` that this process is a part of; empty: of none.

    A job that a trial submits inherits GANDIVA_TRIAL, but is not in the allocation that the trial is in.
    """
    ours = environ.get("GANDIVA_ALLOCATION", "") == environ.get("SLURM_JOB_ID", "")
    return environ.get("GANDIVA_TRIAL", "") if ours else ""


def control_dir(environ: Mapping[str, str]) -> Optional[Path]:
    """GANDIVA_CONTROL_DIR: the control block, set by the SPANK plugin in Gandiva jobs and by `gandiva run` in
    trials.

    None too where it names another's: what is submitted from within a Gandiva job or a trial inherits the
    variable.
    """
    value = environ.get("GANDIVA_CONTROL_DIR", "")
    if not value.startswith("/"):
        return None
    path = Path(value)
    if trial(environ):
        return path if path.name == trial(environ) else None
    if environ.get("GANDIVA_TRIAL") == path.name:
        return None
    foreign = path.name.isdecimal() and environ.get("SLURM_JOB_ID", path.name) != path.name
    return None if foreign else path


def place(environ: Mapping[str, str]) -> Place:
    """Rank and world size of this process.

    RANK/WORLD_SIZE (torchrun and everything that imitates it) win over Slurm's: torchrun's workers are all
    children of one Slurm task. A batch script that starts Python without srun is one process, whatever
    `--ntasks` says.

    Raises ValueError, naming the variable, when the values are no rank and world size.
    """
    for rank_name, world_name in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if environ.get(rank_name, "") and environ.get(world_name, ""):
            return _from(environ, rank_name, world_name)
    if not environ.get("SLURM_PROCID", "") or in_batch_step(environ):
        return Place(0, 1)
    for world_name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if environ.get(world_name, ""):
            return _from(environ, "SLURM_PROCID", world_name)
    return Place(0, 1)


def checked_place(rank: int, world_size: int, source: str = "attach()") -> Place:
    """A rank and a world size that fit each other, or ValueError naming where they came from."""
    if not 0 <= rank < world_size <= MAX_WORLD_SIZE:
        raise ValueError(
            f"rank {rank} of {world_size} from {source}: need 0 <= rank < world size <= {MAX_WORLD_SIZE}"
        )
    return Place(rank, world_size)


def _from(environ: Mapping[str, str], rank_name: str, world_name: str) -> Place:
    try:
        rank, world_size = int(environ[rank_name]), int(environ[world_name])
    except ValueError:
        raise ValueError(
            f"{rank_name}={environ[rank_name]!r} and {world_name}={environ[world_name]!r} must be numbers"
        ) from None
    return checked_place(rank, world_size, f"{rank_name} and {world_name}")


def in_batch_step(environ: Mapping[str, str], cgroup_file: str = "/proc/self/cgroup") -> bool:
    """Whether this process runs in the batch script itself rather than in a step made by srun.

    There SLURM_PROCID is 0 and SLURM_NTASKS what `--ntasks` said, as if it were rank 0 of many. The step id
    tells (-5, printed unsigned by older Slurm), and so does the control group.
    """
    if environ.get("SLURM_STEP_ID") in BATCH_STEP_IDS:
        return True
    try:
        return "/step_batch" in Path(cgroup_file).read_text()
    except OSError:
        return False


def start_time_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with it a process stays itself when its pid is used again. 0: unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The command name, field 2, may contain blanks and parentheses: count from behind it.
        return int(stat[stat.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def visible_positions(directory: Path) -> Optional[Sequence[int]]:
    """The control block's `visible`: positions in Slurm's CUDA_VISIBLE_DEVICES that the job may use now.

    None: all of them.
    """
    try:
        return tuple(int(part) for part in (directory / "visible").read_text().strip().split(","))
    except (OSError, ValueError):
        return None


def message_prefix() -> str:
    """Where a message comes from, for jobs with many ranks writing to one log."""
    number = trial(os.environ)
    whose = f"trial {number}" if number else f"job {os.environ.get('SLURM_JOB_ID', '?')}"
    return f"gandiva: {whose} on {os.uname().nodename}: "
