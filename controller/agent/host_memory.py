# SPDX-License-Identifier: GPL-2.0-or-later
"""How much host memory a process may still take: what is on its GPU goes there when it leaves.

The bounds are those of the kernel: what the machine has available, and the limits of the control groups
that the process is in (Slurm's `--mem`, where the site constrains memory). Past them the kernel kills: the
job would be lost, so a suspend that does not fit is refused beforehand.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from controller.agent.files import text_of
from controller.agent.processes import groups

_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 says "no limit" with a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is left, and whose limit that is."""

    free_bytes: int
    limit: str


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")
"""By version of control groups: the files with limit and usage, and the line of `memory.stat` with what the
kernel can take back."""


class HostMemory:
    """Reads /proc and the control groups. Every answer is of the moment."""

    def __init__(self, proc: Path = Path("/proc"), cgroup_mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup_mount = cgroup_mount

    def room(self, pid: int) -> Room | None:
        """The tightest bound on what the process may still take; None where nothing can be read."""
        machine = self.machine()
        rooms = [*([] if machine is None else [machine]), *self._groups(pid)]
        return min(rooms, key=lambda room: room.free_bytes, default=None)

    def machine(self) -> Room | None:
        """What all processes of the node together may still take; None where it cannot be read."""
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", text_of(self._proc / "meminfo"), re.MULTILINE)
        return Room(int(match[1]) << 10, "this node's memory") if match else None

    def _groups(self, pid: int) -> list[Room]:
        rooms = []
        for controllers, path in groups(text_of(self._proc / str(pid) / "cgroup")):
            if "memory" in controllers:
                mount, names = self._cgroup_mount / "memory", _V1
            elif not controllers:
                mount, names = self._cgroup_mount, _V2
            else:
                continue
            # The limits of all groups above hold as well. In a container its own is the mount itself.
            for group in (mount / path, *(mount / path).parents):
                if group == mount or mount in group.parents:
                    rooms += _room(group, names)
        return rooms


def _room(group: Path, names: tuple[str, str, str]) -> list[Room]:
    limit, usage = (_number(text_of(group / name)) for name in names[:2])
    if limit is None or usage is None or limit >= _UNLIMITED_BYTES:
        return []
    match = re.search(rf"^{names[2]} (\d+)$", text_of(group / "memory.stat"), re.MULTILINE)
    reclaimable = int(match[1]) if match else 0
    return [Room(max(0, limit - usage + reclaimable), f"the limit of {limit >> 20} MiB of {group.name}")]


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
