# SPDX-License-Identifier: GPL-2.0-or-later
"""What a container or an allocation leaves of the machine, by the control groups that this process is in."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from controller.agent.files import text_of
from controller.agent.processes import groups

_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def memory_bytes() -> int:
    """All that this process and what it starts can have."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    files = _limits("memory", "memory.max", "memory.limit_in_bytes")
    return min([physical, *(int(text) for text in files if text.isdecimal())])


def cpus() -> int:
    """So many at a time; a part of one counts as one."""
    most = len(os.sched_getaffinity(0))
    for text in _limits("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        if quota := re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", text):
            most = min(most, -(-int(quota[1]) // int(quota[2])))
    return most


def _limits(controller: str, version_2: str, *version_1: str) -> Iterator[str]:
    """What the files with a limit say, of this process's group and of all above it. In a container its own
    group is where the hierarchy is mounted, whatever its path."""
    for controllers, path in groups(text_of(_PROC / "self/cgroup")):
        if controllers and controller not in controllers:
            continue
        mount = _GROUPS / controller if controllers else _GROUPS
        names = version_1 if controllers else (version_2,)
        for folder in (mount / path, *(mount / path).parents):
            if folder == mount or mount in folder.parents:
                yield " ".join(text_of(folder / name).strip() for name in names)
