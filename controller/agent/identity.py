# SPDX-License-Identifier: GPL-2.0-or-later
"""Which process belongs to which job, from /proc alone: to a job of Slurm's, or to a trial of a study."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controller.agent.process_table import ProcessTable, variables

DELEGATED = re.compile(r"/user\.slice/|/user@\d+\.service/")
"""Users own control groups below their own slice and can give them any name."""
MOST_ANCESTORS = 256

_V1 = re.compile(r"/slurm(?:_(?P<node>[^/]+))?/uid_(?P<uid>\d{1,10})/job_(?P<job>\d{1,10})(?:/|$)")
_V2 = re.compile(
    r"/(?:(?P<node>[^/]+)_)?slurmstepd\.scope/(?:job_(?P<job>\d{1,10})|(?P<sluid>s[0-9A-Z]{13}))(?:/|$)"
)
_STEPD_TITLE = re.compile(r"slurmstepd: \[(?P<job>\d{1,10})(?:\.(?P<step>[^\]]{0,40}))?\]")
_NUMBER = re.compile(r"[1-9]\d{0,9}")


class Identity(Protocol):
    """Says whose a process is. `job_id` is a job's number in Slurm, or a trial's in its study."""

    table: ProcessTable
    own_steps: bool
    """Whether a job has steps of its own, which can be frozen without freezing anything else."""
    may_have_steps: bool
    """Whether one may be started at any moment by Slurm rather than by a process of the job's here."""

    def job_of(self, pid: int) -> int | None:
        """The job that a process belongs to, on this node; None when it belongs to none, or has ended."""

    def members(self, job_id: int) -> list[int]:
        """The job's processes, without Slurm's own; some may have ended."""

    def living(self, job_id: int) -> int:
        """How many processes look like the job's: those of Slurm itself and those that only their environment
        says so of are counted too. 0: nothing of it is here, whatever became of its control block."""

    def launching(self, job_id: int) -> list[str]:
        """Steps of the job that are being started: Slurm's own process of each is here already, and none of
        the user's under it. Of one that has ended, Slurm's goes too. The extern step never has one."""

    def is_here(self, job_id: int) -> bool:
        """Whether a process of the job is here, or Slurm's own of one of its steps, which keeps slurmd from
        starting the job once more."""


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """What a control group's path says."""

    job_id: int | None
    sluid: str | None
    node: str | None


def parse_cgroup(text: str) -> CgroupOwner | None:
    """The owner named by a /proc/PID/cgroup; None when the process is in no job's control group."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if DELEGATED.search(path):
            continue
        if match := _V1.search(path):
            return CgroupOwner(int(match["job"]), None, match["node"])
        if match := _V2.search(path):
            job = match["job"]
            return CgroupOwner(int(job) if job else None, match["sluid"], match["node"])
    return None


class SlurmJobs:
    """Jobs of Slurm, which puts every process of a job into a control group whose path names it:

        cgroup v1            …/slurm[_NODE]/uid_1000/job_12/step_0/task_0
        cgroup v2            …/system.slice/[NODE_]slurmstepd.scope/job_12/step_0/user/task_0
        cgroup v2, 26.05     …/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0      (SLUID, not job id)

    (NODE where slurmd is built for several daemons per host.) For a SLUID the job id is taken from the title
    of the slurmstepd of that folder, "slurmstepd: [12.batch]", which only root can set. A site without
    control groups is left with SLURM_JOB_ID in the process's environment, which its owner can write: it
    counts only for a job of the same user.
    """

    own_steps = may_have_steps = True

    def __init__(
        self, node: str, uid_of_job: Callable[[int], int | None], table: ProcessTable | None = None
    ) -> None:
        """`uid_of_job` says whose a job is, or None when it is not known on this node."""
        self.table = table or ProcessTable()
        self._node = node
        self._uid_of_job = uid_of_job
        self._job_of_sluid: dict[str, int] = {}

    def job_of(self, pid: int) -> int | None:
        owner = parse_cgroup(self.table.read(pid, "cgroup"))
        if owner is not None:
            if owner.node is not None and owner.node != self._node:
                return None  # another slurmd on the same host
            if owner.job_id is not None:
                return owner.job_id
            if owner.sluid is not None and (found := self._job_of_folder(owner.sluid)) is not None:
                return found
        return self._job_by_environment(pid)

    def members(self, job_id: int) -> list[int]:
        owner = self._uid_of_job(job_id)
        found = []
        for pid in self.table.pids():
            if self.job_of(pid) != job_id:
                continue
            # Only of root's processes does the name count: a user's can have any.
            if self.table.uid(pid) == 0 and (owner != 0 or self.table.comm(pid) == "slurmstepd"):
                continue
            found.append(pid)
        return found

    def living(self, job_id: int) -> int:
        return sum(self._looks_like(pid, job_id) for pid in self.table.pids())

    def launching(self, job_id: int) -> list[str]:
        steps: dict[int, str] = {}
        parents: set[int] = set()
        for pid in self.table.pids():
            fields = self.table.stat(pid)
            if fields is None or fields[0] in ("Z", "X"):
                continue
            if not self._is_slurms(pid):
                parents.add(int(fields[1]))
            elif (title := self._title(pid)) is not None and int(title["job"]) == job_id:
                steps[pid] = title["step"] or ""
        return sorted(
            step
            for pid, step in steps.items()
            if pid not in parents and step not in ("extern", "extern stepmgr")
        )

    def is_here(self, job_id: int) -> bool:
        if any(self.table.start_time_ticks(pid) is not None for pid in self.members(job_id)):
            return True
        titles = (self._title(pid) for pid in self.table.pids() if self._is_slurms(pid))
        return any(int(title["job"]) == job_id for title in titles if title is not None)

    def _looks_like(self, pid: int, job_id: int) -> bool:
        if self.job_of(pid) == job_id:
            return True
        title = self._title(pid)
        if title is not None and int(title["job"]) == job_id:
            return True
        return f"SLURM_JOB_ID={job_id}" in self.table.read(pid, "environ").split("\0")

    def _title(self, pid: int) -> re.Match[str] | None:
        """What a slurmstepd says it is for."""
        return _STEPD_TITLE.match(" ".join(self.table.arguments(pid)))

    def _is_slurms(self, pid: int) -> bool:
        """Whether it is Slurm's own process of a step."""
        return self.table.comm(pid) == "slurmstepd" and self.table.uid(pid) == 0

    def _job_of_folder(self, sluid: str) -> int | None:
        if sluid in self._job_of_sluid:
            return self._job_of_sluid[sluid]
        for pid in self.table.pids():
            owner = parse_cgroup(self.table.read(pid, "cgroup")) if self._is_slurms(pid) else None
            if owner is not None and owner.sluid == sluid and (match := self._title(pid)):
                # A SLUID is unique for ever: it can be kept. Bounded all the same.
                if len(self._job_of_sluid) > 10_000:
                    self._job_of_sluid.clear()
                self._job_of_sluid[sluid] = int(match["job"])
                return self._job_of_sluid[sluid]
        return None

    def _job_by_environment(self, pid: int) -> int | None:
        environ = variables(self.table.read(pid, "environ"))
        claimed = environ.get("SLURM_JOB_ID", "")
        if not _NUMBER.fullmatch(claimed):
            return None
        if environ.get("SLURMD_NODENAME", self._node) != self._node:
            return None
        uid = self.table.uid(pid)
        return int(claimed) if uid is not None and self._uid_of_job(int(claimed)) == uid else None


class Trials:
    """Trials of a study of this user.

    A trial's first process has GANDIVA_CONTROL_DIR=RUN_DIR/N in its environment, and is there as long as the
    trial: it becomes the parent of all its descendants that lose theirs. So what a process does with its own
    environment, session and parents changes nothing.

    GANDIVA_ALLOCATION tells what Slurm has started elsewhere on behalf of a trial (sbatch hands its
    environment on): there SLURM_JOB_ID is another one. Of Slurm itself there is nothing.
    """

    own_steps = False

    def __init__(self, run_dir: Path, table: ProcessTable | None = None) -> None:
        """`run_dir` as the trials have it: no link is followed on either side."""
        self.table = table or ProcessTable()
        self._prefix = f"{run_dir}/"
        self.may_have_steps = "SLURM_JOB_ID" in os.environ
        self._uid, self._agent = os.geteuid(), os.getpid()

    def job_of(self, pid: int) -> int | None:
        return self._trials([pid]).get(pid)

    def members(self, job_id: int) -> list[int]:
        return [pid for pid, trial in self._trials(self.table.pids()).items() if trial == job_id]

    def living(self, job_id: int) -> int:
        return sum(self.table.start_time_ticks(pid) is not None for pid in self.members(job_id))

    def launching(self, job_id: int) -> list[str]:
        return []

    def is_here(self, job_id: int) -> bool:
        """Its first process says so of itself: no other need be asked for those above it."""
        says = (pid for pid in self.table.pids() if self._says(pid) == job_id)
        return any(self.table.start_time_ticks(pid) is not None for pid in says)

    def _trials(self, pids: Iterable[int]) -> dict[int, int]:
        """Those of these processes that belong to a trial; each environment is read once."""
        known: dict[int, int | None] = {self._agent: None}
        found = {}
        for pid in pids:
            if self.table.effective_uid(pid) != self._uid:
                continue
            trial = self._trial(pid, known)
            if trial is not None and not self.table.calls_the_driver(pid):
                found[pid] = trial
        return found

    def _trial(self, pid: int, known: dict[int, int | None], depth: int = 0) -> int | None:
        """Of the process, else of the nearest one above it. Nothing above an agent makes it a trial's."""
        if pid in known:
            return known[pid]
        found, parent, before = self._says(pid), self.table.parent(pid), None
        # Where its parent has ended since that look, it has another one now.
        while found is None and parent not in (None, before) and depth < MOST_ANCESTORS:
            found = self._trial(parent, known, depth + 1)
            before, parent = parent, self.table.parent(pid)
        known[pid] = found
        return found

    def _says(self, pid: int) -> int | None:
        """What its own environment says."""
        text = self.table.read(pid, "environ") if self.table.effective_uid(pid) == self._uid else ""
        if f"GANDIVA_CONTROL_DIR={self._prefix}" not in text:
            return None
        environ = variables(text)
        number = environ.get("GANDIVA_CONTROL_DIR", "").removeprefix(self._prefix)
        allocated = environ.get("GANDIVA_ALLOCATION", "") == environ.get("SLURM_JOB_ID", "")
        return int(number) if allocated and _NUMBER.fullmatch(number) else None
