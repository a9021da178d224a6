# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes of this user on this machine, by their first one, from /proc."""

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Process(NamedTuple):
    """One process, which stays itself when its number is used again."""

    pid: int
    ticks: int
    """When it started: field 22 of /proc/PID/stat."""

    def lives(self) -> bool:
        """Whether it runs, here and now. A child of ours that has ended is buried."""
        fields = _stat(self.pid)
        if not fields or int(fields[19]) != self.ticks:
            return False
        if fields[0] == "Z":
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, os.WNOHANG)  # an earlier supervisor's is no child
        return fields[0] not in "ZX"


def here() -> tuple[str, str]:
    """This host, and the number of its boot; empty where that is not told."""
    try:
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return os.uname().nodename, boot_id


def process(pid: int) -> Process:
    """The process that has this number now; one that has ended does not live."""
    fields = _stat(pid)
    return Process(pid, int(fields[19]) if fields else 0)


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = defaultdict(list)
    for other in _pids():
        if fields := _stat(other):
            children[int(fields[1])].append(other)
    found = list(children[pid])
    for each in found:
        found += children[each]
    return found


def named(variable: str) -> list[int]:
    """Processes of this user that were started with `NAME=value` in their environment."""
    wanted, uid = variable.encode(), os.geteuid()
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            folder = _PROC / str(pid)
            if folder.stat().st_uid == uid and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """A signal to each that is there and may be sent one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; none when there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
