# SPDX-License-Identifier: GPL-2.0-or-later
"""srun, scancel and scontrol of an allocation that is this machine, for tests without Slurm.

    python fake_srun.py FOLDER PROGRAM ARGUMENTS…

As of Slurm: a SIGTERM for srun kills its step at once, and scancel --signal reaches the step's processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

JOB = "77"


def wait(steps: Path, program: str) -> None:
    """As long as the test has a file for that."""
    while steps.with_name(f"{program}-waits").exists():
        time.sleep(0.01)


def srun(steps: Path, words: list[str]) -> int:
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    command = words[next(i for i, word in enumerate(words) if not word.startswith("--")) :]
    note = steps / f"{JOB}.{os.getpid()}"
    tasks: list[subprocess.Popen[bytes]] = []

    def kill(_number: int, _frame: object) -> None:
        for task in tasks:
            os.killpg(task.pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill)
    for node in options["--nodelist"].split(","):
        environ = {**os.environ, "SLURMD_NODENAME": node, "SLURM_STEP_ID": str(os.getpid())}
        tasks.append(subprocess.Popen(command, env=environ, start_new_session=True))
    note.write_text(f"{options['--job-name']}\n" + "\n".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    note.unlink()
    return max(code if code >= 0 else 128 - code for code in codes)


def scancel(steps: Path, words: list[str]) -> int:
    number = signal.Signals[f"SIG{words[0].removeprefix('--signal=')}"]
    note = steps / words[1]
    for pid in note.read_text().split("\n")[1:] if note.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), number)
    return 0


def scontrol(steps: Path, words: list[str]) -> int:
    """The allocation, or what the test says of it in FOLDER/../job."""
    said = steps.with_name("job")
    if words[-1] != JOB:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    more = said.read_text() if said.exists() else "JobState=RUNNING EndTime=Unknown"
    print(f"JobId={JOB} {more} Nodes=n[1-3] CPU_IDs=0-3 Mem=8192 GRES=")
    return 0


if __name__ == "__main__":
    wait(Path(sys.argv[1]), sys.argv[2])
    programs = {"srun": srun, "scancel": scancel, "scontrol": scontrol}
    sys.exit(programs[sys.argv[2]](Path(sys.argv[1]), sys.argv[3:]))
