# SPDX-License-Identifier: GPL-2.0-or-later
"""The processes of a node's jobs: which there are, whether they run, and how they are made to stop."""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.agent.files import text_of
from controller.agent.identity import DELEGATED, Identity

_STEP = re.compile(
    r"(?:.*/)?(?:slurm(?:_[^/]+)?/uid_\d+/job_\d+/step_[^/]+"
    r"|(?:[^/]+_)?slurmstepd\.scope/[^/]+/step_[^/]+/user)(?=/|$)"
)
"""The control group that Slurm freezes to suspend a step; slurmstepd is outside."""
_FREEZE, _FREEZER_STATES = "cgroup.freeze", ("THAWED", "FROZEN")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that stays itself when its pid is used again."""

    pid: int
    start_time_ticks: int


def groups(text: str) -> Iterator[tuple[Sequence[str], str]]:
    """The control groups that a /proc/PID/cgroup lists: controllers (none: version 2) and path. Those outside
    our view of the hierarchy are left out."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/..") and (controllers or number == "0"):
            yield [] if number == "0" else controllers.split(","), path.lstrip("/")


class Processes:
    """The process table of a node. Every answer is of the moment: processes come and go."""

    def __init__(self, identity: Identity, cgroup_mount: Path = Path("/sys/fs/cgroup")) -> None:
        """`identity` says whose they are."""
        self._identity, self._table = identity, identity.table
        self._cgroup_mount = cgroup_mount

    def start_time_ticks(self, pid: int) -> int | None:
        """Field 22 of /proc/PID/stat; None when there is no such live process."""
        return self._table.start_time_ticks(pid)

    def alive(self, process: ProcessId) -> bool:
        """Whether it still runs and is the same process."""
        return self.start_time_ticks(process.pid) == process.start_time_ticks

    def uid(self, pid: int) -> int | None:
        """Real user id; None when there is no such process."""
        return self._table.uid(pid)

    def job_of(self, pid: int) -> int | None:
        """The job that a process belongs to, on this node; None when it belongs to none, or has ended."""
        return self._identity.job_of(pid)

    def of_job(self, job_id: int) -> tuple[ProcessId, ...]:
        """The job's processes, without Slurm's own (which run as root)."""
        started = ((pid, self.start_time_ticks(pid)) for pid in self._identity.members(job_id))
        return tuple(ProcessId(pid, start) for pid, start in started if start is not None)

    def living(self, job_id: int) -> int:
        """How many processes look like the job's. 0: nothing of it is here, whatever became of its control
        block."""
        return self._identity.living(job_id)

    def launching(self, job_id: int) -> list[str]:
        """Steps of the job that are being started."""
        return self._identity.launching(job_id)

    def is_here(self, job_id: int) -> bool:
        """Whether a process of the job is here, or Slurm's own of one of its steps."""
        return self._identity.is_here(job_id)

    def calls_the_driver(self, pid: int) -> bool:
        """Whether it is a process by which an agent makes driver calls (`checkpointing.driver_process`)."""
        return self._table.calls_the_driver(pid)

    def maps(self, pid: int) -> str:
        """What is in the address space of a process, as in /proc/PID/maps; empty when it has ended."""
        return self._table.read(pid, "maps")

    def halted(self, pid: int) -> str | None:
        """ "stopped" or "frozen" when the process cannot run now; None when it can, or has ended."""
        fields = self._table.stat(pid)
        if fields is None:
            return None
        if fields[0] in ("T", "t"):
            return "stopped"
        return "frozen" if self._frozen(pid) else None

    def send(self, processes: Sequence[ProcessId], number: signal.Signals) -> None:
        """Send a signal; a process that has ended meanwhile needs none, and who has its pid now gets none."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                self._send_one(process, number)

    @property
    def may_have_steps(self) -> bool:
        """See `Identity`."""
        return self._identity.may_have_steps

    def freeze(self, processes: Sequence[ProcessId], frozen: bool) -> None:
        """Freeze the steps of these processes as Slurm does, or let them run: unlike a stop, no signal of the
        job's owner undoes it. What has no control group of Slurm's stays as it is."""
        if not self._identity.own_steps:
            return
        for file in {file for process in processes for file in self._freezers(process.pid) if file.is_file()}:
            with contextlib.suppress(OSError):
                file.write_text(str(int(frozen)) if file.name == _FREEZE else _FREEZER_STATES[frozen])

    def _send_one(self, process: ProcessId, number: signal.Signals) -> None:
        try:
            # Opened before the look: then it stands for the process that was looked at.
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            # Linux before 5.3 (RHEL 8) has no such call, nor has a Python that was made with its headers:
            # then the look just before must do.
            if self.alive(process):
                os.kill(process.pid, number)
            return
        try:
            if self.alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)

    def _frozen(self, pid: int) -> bool:
        files = self._freezers(pid)
        words = (text_of(file.with_name("cgroup.events") if file.name == _FREEZE else file) for file in files)
        return any(re.search("FROZEN|FREEZING|frozen 1", word) for word in words)

    def _freezers(self, pid: int) -> Iterator[Path]:
        for controllers, path in groups(self._table.read(pid, "cgroup")):
            step = _STEP.match(path)
            if step is None or DELEGATED.search(f"/{path}"):
                continue
            if "freezer" in controllers:
                yield self._cgroup_mount / "freezer" / step[0] / "freezer.state"
            elif not controllers:
                yield self._cgroup_mount / step[0] / _FREEZE
                yield self._cgroup_mount / "unified" / step[0] / _FREEZE
