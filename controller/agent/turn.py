# SPDX-License-Identifier: GPL-2.0-or-later
"""Which GPUs of the node a job may open now.

A floating job's GPUs are, for Slurm, all of its node's. The file `turn` of its control block says whether the
job is on its GPUs, and which devices that opens and closes; `gandiva-confine` (`slurm_plugin/confine/`) does
it by the device control groups that Slurm has made for the job. The SPANK plugin reads the same file: no task
of a job begins before an agent has written that its start is prepared.
"""

import math
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from controller.agent.control_block import ControlBlock
from controller.agent.deadline import Deadline
from controller.agent.files import run, text_of
from controller.nodes.protocol import AgentError, ErrorKind

TOOLS = (Path("/usr/sbin/gandiva-confine"), Path("/usr/local/sbin/gandiva-confine"))
CGROUP_CONF = (Path("/etc/slurm"), Path("/run/slurm/conf"), Path("/usr/local/etc"), Path("/opt/slurm/etc"))
"""Where Slurm's configuration is; the second: of a configless node."""
SECONDS, AGAIN_SECONDS = 10.0, 60.0


class Confinement:
    """Opens and closes GPUs for jobs, where this node can."""

    def __init__(
        self,
        tools: Sequence[Path] = TOOLS,
        cgroup_conf: Sequence[Path] = CGROUP_CONF,
        devices: Path = Path("/dev"),
    ) -> None:
        self._tools, self._tool = tools, tools[0]
        self._cgroup_conf = cgroup_conf
        self._devices = devices
        self._looked_at, self._obstacle = -AGAIN_SECONDS, ""

    @property
    def obstacle(self) -> str:
        """Why no job can be kept off the GPUs of its node that are not its own; empty: all can, which is not
        asked again."""
        now = time.monotonic()
        if self._looked_at + AGAIN_SECONDS <= now:
            self._obstacle = self._look()
            self._looked_at = now if self._obstacle else math.inf
        return self._obstacle

    def _look(self) -> str:
        self._tool = next(filter(Path.is_file, self._tools), self._tool)
        if not self._tool.is_file():
            return "gandiva-confine is not installed: it comes with the SPANK plugin"
        files = [file for file in (folder / "cgroup.conf" for folder in self._cgroup_conf) if file.is_file()]
        if not files:
            return f"there is no cgroup.conf in {', '.join(map(str, self._cgroup_conf))}"
        if not re.search(
            r"^\s*ConstrainDevices\s*=\s*yes\b", text_of(files[0]), re.MULTILINE | re.IGNORECASE
        ):
            return f"{files[0]} does not have ConstrainDevices=yes"
        return run([str(self._tool), "--probe"], SECONDS)

    def write(self, block: ControlBlock, *, on: bool, gpus: Sequence[int], binding: Sequence[int]) -> None:
        """Say whether the job is on its GPUs now, and on which of its binding. Raises
        AgentError."""
        opened = set(gpus) if on else set()
        closed = {*gpus, *binding} - opened if not self.obstacle else set()
        block.write_turn(on, self._numbers(opened), self._numbers(closed))

    def opens(self, block: ControlBlock, gpus: Sequence[int]) -> bool:
        """Whether the job may open any of these now."""
        return not block.opened().isdisjoint(self._numbers(gpus))

    def apply(self, block: ControlBlock, pids: Iterable[int], deadline: Deadline) -> None:
        """Open and close for the job of these processes what was written. A process may end meanwhile;
        without one there is nothing to do, since each step begins with that. Raises AgentError internal."""
        problem = ""
        for pid in pids:
            command = [str(self._tool), str(block.path), str(pid)]
            problem = run(command, deadline.at_least(1.0).at_most(SECONDS).left_seconds)
            if not problem or not Path(f"/proc/{pid}").exists():
                return
        if problem:
            raise AgentError(ErrorKind.INTERNAL, f"job {block.job_id} is not kept to its GPUs: {problem}")

    def _numbers(self, gpus: Iterable[int]) -> list[str]:
        """MAJOR:MINOR of the devices of these GPUs, of those that there are."""
        found = []
        for gpu in sorted(gpus):
            try:
                status = (self._devices / f"nvidia{gpu}").stat()
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode):
                found.append(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
        return found
