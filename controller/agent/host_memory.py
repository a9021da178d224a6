# SPDX-License-Identifier: GPL-2.0-or-later
"""How much host memory a process may still take: what is on its GPU goes there when it leaves.

The bounds are those of the kernel: what the machine has available, and the limits of the control groups
that the process is in (Slurm's `--mem`, where the site constrains memory). Past them the kernel kills: the
job would be lost, so a suspend that does not fit is refused beforehand.
"""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.agent.deadline import Deadline
from controller.agent.files import text_of
from controller.agent.processes import groups
from controller.nodes.protocol import AgentError, ErrorKind

_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 says "no limit" with a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is left, and whose limit that is."""

    free_bytes: int
    limit: str
    of: Path
    """What has the limit: a control group, or what stands for it. Others under it share what is left."""
    advice: str = "submit it with more --mem (in a study file: memory)"


@dataclass(frozen=True, slots=True)
class _Promise:
    needed_bytes: int
    of: frozenset[Path]


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")
"""By version of control groups: the files with limit and usage, and the line of `memory.stat` with what the
kernel can take back."""


class HostMemory:
    """Reads /proc and the control groups, and promises what it finds to verbs under way."""

    def __init__(self, proc: Path = Path("/proc"), cgroup_mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup_mount = cgroup_mount
        self._promises: dict[int, _Promise] = {}
        """By job."""
        self._changed = threading.Condition()

    def promise(
        self,
        job_id: int,
        needed_bytes: Mapping[int, int],
        deadline: Deadline,
        budget: Callable[[], Room | None] = lambda: None,
    ) -> None:
        """These processes of the job (pid: bytes) may take so much more, until `release`, within all that
        bounds them, `budget` too. Waits for other jobs' verbs where too little is left beside what they were
        promised: all of a node's jobs may leave at once. Raises AgentError host_memory.
        """
        needed = sum(needed_bytes.values())
        with self._changed:
            while True:
                rooms = {room.of: room for pid in needed_bytes for room in self.rooms(pid)}
                if (most := budget()) is not None:
                    rooms[most.of] = most
                own = self._promises.get(job_id)
                for room in sorted(rooms.values(), key=lambda room: room.free_bytes):
                    if room.free_bytes < needed:
                        raise _no_room(needed, job_id, room, "")
                # What others have taken of it already is counted twice: then there is more soon.
                short = [room for room in rooms.values() if room.free_bytes - self._promised(room) < needed]
                # In the middle of leaving: two such jobs must not wait for each other.
                if not short or own is not None:
                    break
                if not self._changed.wait(deadline.left_seconds):
                    raise _no_room(
                        needed, job_id, short[0], ", where other jobs are just leaving their GPUs too"
                    )
            before = 0 if own is None else own.needed_bytes
            self._promises[job_id] = _Promise(max(before, needed), frozenset(rooms))

    def _promised(self, room: Room) -> int:
        return sum(each.needed_bytes for each in self._promises.values() if room.of in each.of)

    def release(self, job_id: int) -> None:
        """The job's verb is over: it has taken what it needed."""
        with self._changed:
            if self._promises.pop(job_id, None) is not None:
                self._changed.notify_all()

    def rooms(self, pid: int) -> list[Room]:
        """All bounds on what the process may still take; none where nothing can be read."""
        machine = self.machine()
        return [*([] if machine is None else [machine]), *self._groups(pid)]

    def machine(self) -> Room | None:
        """What all processes of the node together may still take; None where it cannot be read."""
        file = self._proc / "meminfo"
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", text_of(file), re.MULTILINE)
        return Room(int(match[1]) << 10, "this node's memory", file) if match else None

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
    free_bytes = max(0, limit - usage + reclaimable)
    return [Room(free_bytes, f"the limit of {limit >> 20} MiB of {group.name}", group)]


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _no_room(needed: int, job_id: int, room: Room, more: str) -> AgentError:
    return AgentError(
        ErrorKind.HOST_MEMORY,
        f"{-(-needed >> 20)} MiB of GPU memory of job {job_id} do not fit into host memory:"
        f" {room.free_bytes >> 20} MiB are left of {room.limit}{more}; {room.advice}",
    )
