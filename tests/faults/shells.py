# SPDX-License-Identifier: GPL-2.0-or-later
"""A shell on each host that stays open: hundreds of small commands without an `exec` of the engine for each,
which on a busy machine takes longer than everything else in a fault together."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from container.errors import CommandError, DeadlineError


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed (both outputs), and its status."""

    text: str
    status: int


class Shell:
    """bash as root in one container; opened at the first command, and again after it ended."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._process: Any = None
        self._number = 0

    def run(self, script: str, *, check: bool = True, timeout_seconds: float = 60.0) -> Said:
        """Run a bash script. Raises CommandError for a status other than 0 (unless told not to) and when the
        container goes away, DeadlineError when it takes too long."""
        self._number += 1
        mark = f"end-of-{os.getpid()}-{self._number}"
        line = f"timeout -k 2 {timeout_seconds:.1f} bash -c {shlex.quote(script)} < /dev/null 2>&1"
        process = self._opened()
        try:
            process.stdin.write(f"{line}; printf '\\n%s %d\\n' {mark} $?\n".encode())
            process.stdin.flush()
            text, status = self._read(process, mark, time.monotonic() + timeout_seconds + 20.0)
        except (OSError, EOFError) as error:
            self.close()
            raise CommandError(self._container, script, -1, "", f"the shell ended: {error}") from error
        except TimeoutError as error:
            self.close()
            raise DeadlineError(f"{self._container}: {script!r}: no answer") from error
        if check and status != 0:
            raise CommandError(self._container, script, status, text, "")
        return Said(text, status)

    def close(self) -> None:
        """End it; what it has started goes on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _opened(self) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                ["docker", "exec", "-i", self._container, "bash"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    @staticmethod
    def _read(process: Any, mark: str, deadline: float) -> tuple[str, int]:
        data = b""
        wanted = f"\n{mark} ".encode()
        descriptor = process.stdout.fileno()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not select.select([descriptor], [], [], left)[0]:
                continue
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise EOFError("its container is gone")
            data += piece
            before, found, after = data.partition(wanted)
            if found and after.endswith(b"\n"):
                return before.decode(errors="replace"), int(after)
