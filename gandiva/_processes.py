# SPDX-License-Identifier: MIT
"""Child processes: of a launcher, one for each rank; and what Slurm's commands run in."""

import os
import signal
import socket
import subprocess
import time
from typing import Dict, Mapping, Optional, Sequence

PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What a launcher hands to its ranks, besides what ends it. (Unless a site sets SignalChildrenProcesses,
Slurm's `--signal` and `scancel --signal` reach the launcher alone; cgroup.conf, Slurm 24.11.)"""

_KEPT = ("HOME", "LD_LIBRARY_PATH", "PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "USER")
"""What programs need, where slurmctld is, and who asks (auth/jwt). Anything else (SQUEUE_STATES,
SACCT_FORMAT, SLURM_JOB_ID, …) would change what the commands do or print."""


def slurm_environment(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """The environment that Slurm's commands run in. Times are in UTC: local ones are not clear in the hour
    when clocks are set back."""
    kept = {name: environ[name] for name in _KEPT if name in environ}
    fixed = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC0"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, **fixed}


def free_port() -> int:
    """One that no process of this node listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def variables(rank: int, ranks: int, port: int) -> Dict[str, str]:
    """What tells a process which rank it is, and where rank 0 listens."""
    own = {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    of_all = {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return {**own, **of_all, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def status(processes: Sequence["subprocess.Popen[bytes]"]) -> Optional[int]:
    """The exit status of all: 0, or that of the first that failed, 128 and the signal's number where a signal
    has ended it. None while they go on."""
    codes = [process.poll() for process in processes]
    failed = next((code for code in codes if code), None)
    if failed is not None:
        return failed if failed > 0 else 128 - failed
    return 0 if all(code == 0 for code in codes) else None


def send(processes: Sequence["subprocess.Popen[bytes]"], number: int) -> None:
    """A signal to those that are there."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def end(processes: Sequence["subprocess.Popen[bytes]"], grace_seconds: float) -> None:
    """SIGTERM to all, and SIGKILL to those that are there after so long."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + grace_seconds
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
