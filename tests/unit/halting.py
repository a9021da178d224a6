# SPDX-License-Identifier: GPL-2.0-or-later
"""A stopped process. A signal is sent before it is obeyed, on a busy machine long before."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PATIENCE_SECONDS = 60.0


def halt(pid: int) -> None:
    """Stop a process, as Slurm does, and wait until all of its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + PATIENCE_SECONDS
    while _states(pid) != {"T"}:
        assert time.monotonic() < until, f"process {pid} is not stopped"
        time.sleep(0.002)


def _states(pid: int) -> set[str]:
    stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}
