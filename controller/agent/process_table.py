# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc, read. Every answer is of the moment: processes come and go."""

import os
import re
from pathlib import Path

MAX_READ_BYTES = 1 << 20
READ_BYTES = 1 << 16


def variables(environ: str) -> dict[str, str]:
    """By name, from the text of a /proc/PID/environ."""
    return dict(entry.split("=", 1) for entry in environ.split("\0") if "=" in entry)


class ProcessTable:
    """The processes that this one sees."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)

    def pids(self) -> list[int]:
        with os.scandir(self._proc) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]

    def read(self, pid: int, name: str) -> str:
        """One file of a process; empty when it has ended, or the file may not be read."""
        # Read a thousand times at a switch: without a file object and a Path it takes a third of the time.
        try:
            file = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            data = os.read(file, READ_BYTES)
            while len(data) < MAX_READ_BYTES and (more := os.read(file, READ_BYTES)):
                data += more
        except OSError:
            return ""
        finally:
            os.close(file)
        return data.decode("utf-8", "replace")

    def stat(self, pid: int) -> list[str] | None:
        """The fields of /proc/PID/stat from the third on (the second, the name, may contain anything)."""
        text = self.read(pid, "stat")
        if ")" not in text:
            return None
        fields = text[text.rindex(")") + 1 :].split()
        return fields if len(fields) > 19 and fields[19].isdecimal() else None

    def start_time_ticks(self, pid: int) -> int | None:
        """Field 22 of /proc/PID/stat; None when there is no such live process."""
        fields = self.stat(pid)
        return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])

    def parent(self, pid: int) -> int | None:
        """Its parent's pid; None when there is no such process, or it has no parent here."""
        fields = self.stat(pid)
        return None if fields is None else int(fields[1]) or None

    def uid(self, pid: int) -> int | None:
        """Real user id; None when there is no such process."""
        match = re.search(r"^Uid:\s+(\d+)", self.read(pid, "status"), re.MULTILINE)
        return int(match.group(1)) if match else None

    def effective_uid(self, pid: int) -> int | None:
        """Effective user id, which costs a tenth of the real one; None when there is no such process."""
        try:
            return os.stat(f"{self._proc}/{pid}").st_uid  # noqa: PTH116 (no Path: as in `read`)
        except OSError:
            return None

    def arguments(self, pid: int) -> list[str]:
        """Its command line, which it may have changed."""
        return self.read(pid, "cmdline").split("\0")

    def comm(self, pid: int) -> str:
        """Its name, which anybody can choose."""
        return self.read(pid, "comm").strip()

    def calls_the_driver(self, pid: int) -> bool:
        """Whether it is a process by which an agent makes driver calls (`checkpointing.driver_process`)."""
        return "checkpointing.driver_process" in self.arguments(pid) and self.uid(pid) == os.geteuid()
