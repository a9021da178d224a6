# SPDX-License-Identifier: GPL-2.0-or-later
"""Hits the node agent in the middle of a call.

    python3 striker.py KILL|STOP DELAY_SECONDS [FOLDER [RUN_DIR]]

Runs on the node and waits before the call begins: a shell that is started then would come after most calls
have ended. A line with the job's number in the pipe `trigger` says that the call begins. The agent holds the
lock of the job's control block, with its own pid in it, while it is at work on the job. Once it does, and
DELAY_SECONDS later, it is stopped (SIGSTOP). If it holds the lock even then, it cannot have answered: it
is killed, or stays as it is, and `struck` says so. If not, it goes on, and `struck` says that it was missed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

BEGIN_SECONDS = 20.0
"""So long the agent may take from the trigger to the lock."""
POLL_SECONDS = 0.0003
GONE_SECONDS = 60.0


def holder(lock: Path) -> int:
    """The agent that is at work on the job; 0: none."""
    try:
        return int(lock.read_text().partition(" ")[0] or 0)
    except (OSError, ValueError):
        return 0


def state(pid: int) -> str:
    """The letter of /proc/PID/stat; X: it is gone."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return "X"
    return stat[stat.rindex(")") + 2 :][:1]


def wait_state(pid: int, states: str) -> bool:
    deadline = time.monotonic() + GONE_SECONDS
    while state(pid) not in states:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def strike(lock: Path, number: signal.Signals, delay_seconds: float) -> dict[str, Any]:
    """What was done to which agent, and when."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while not (pid := holder(lock)):
        if time.monotonic() > deadline:
            return {"struck": False, "why": f"no agent had {lock} within {BEGIN_SECONDS:g} s"}
        time.sleep(POLL_SECONDS)
    time.sleep(delay_seconds)
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return {"struck": False, "why": f"agent {pid} had gone by itself"}
    if not wait_state(pid, "T"):
        return {"struck": False, "why": f"agent {pid} did not stop"}
    at = time.monotonic()
    if holder(lock) != pid:
        os.kill(pid, signal.SIGCONT)
        return {"struck": False, "why": f"agent {pid} had done its work {delay_seconds * 1000:g} ms later"}
    if number != signal.SIGSTOP:
        os.kill(pid, number)
        if not wait_state(pid, "XZ"):
            return {"struck": False, "why": f"agent {pid} lives after {number.name}"}
    return {"struck": True, "why": "", "agent": pid, "at": at}


def main(arguments: list[str]) -> int:
    """Waits for one trigger."""
    number = signal.Signals[f"SIG{arguments[0]}"]
    delay_seconds = float(arguments[1])
    folder = Path(arguments[2] if len(arguments) > 2 else "/shared/gandiva-faults")
    run_dir = Path(arguments[3] if len(arguments) > 3 else "/run/gandiva")
    # For writing too: so it opens at once, and does not end when the other side closes it.
    with os.fdopen(os.open(folder / "trigger", os.O_RDWR), "rb", buffering=0) as pipe:
        (folder / "ready").touch()
        job_id = int(pipe.readline())
    found = strike(run_dir / str(job_id) / "agent.lock", number, delay_seconds)
    draft = folder / "struck.new"
    draft.write_text(json.dumps(found))
    draft.rename(folder / "struck")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
