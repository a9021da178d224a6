# SPDX-License-Identifier: MIT
"""Starts one rank of a training for each GPU of the job on this node, and starts them anew when the number of
GPUs changes.

    python3 -m gandiva.ranks train.py --resume checkpoints/

The ranks find RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun gives them, and see
the job's present GPUs. To take the job off its GPUs the launcher ends the ranks with SIGTERM: the script
saves its state, which must not depend on the number of ranks, and ends with an exit status other than 0.
The launcher starts them again when the job is back, on as many GPUs as it has then. Exit status 0 of all
ranks is the end of the training; another one without a SIGTERM is the launcher's own.
"""

import argparse
import os
import signal
import subprocess
import sys
from typing import Any, List, Mapping, Optional, Sequence

from . import _environment, attach
from ._processes import PASSED_ON, end, free_port, send, status, variables
from ._reporting import FD_NAME, Reports
from ._session import Session

LOOK_SECONDS = 0.05
GRACE_SECONDS = 30.0
STOPPED = 128 + signal.SIGTERM


class Devices:
    """Which names in CUDA_VISIBLE_DEVICES stand for the GPUs that the job uses now."""

    def __init__(self, environ: Mapping[str, str], session: Session) -> None:
        self._session = session
        visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        positions = session.visible_positions()
        self._all: Sequence[str] = visible
        """By position in what Slurm gave the job, or a trial is bound to. Empty: counted from 0 among those
        its cgroup allows."""
        if _environment.trial(environ):
            self._all = [name for name in environ.get("GANDIVA_GPUS", "").split(",") if name] or visible
        elif positions is not None:
            counted = visible == [str(position) for position in positions]
            self._all = () if counted else environ.get("SLURM_JOB_GPUS", "").split(",")

    def now(self) -> List[str]:
        """Their names; one name that is empty where nothing is known: a rank that sees what there is."""
        positions = self._session.visible_positions()
        if positions is None:
            positions = range(self._session.gpus or len(self._all) or 1)
        names = self._all or [str(position) for position in range(max(positions) + 1)]
        return [names[position] for position in positions if position < len(names)] or [""]


class Ranks:
    """The processes of the training: registered with a session they leave the GPUs and come back together."""

    releases_context = True
    starts_processes = True
    state_bytes = 0

    def __init__(
        self, command: Sequence[str], devices: Devices, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """`grace_seconds`: so long the ranks have after SIGTERM."""
        self._command, self._devices, self._grace_seconds = list(command), devices, grace_seconds
        self._processes: List["subprocess.Popen[bytes]"] = []
        self.reports = Reports()

    def restore(self) -> None:
        """Start a rank for each GPU, unless the training has ended."""
        if self._processes and self.ended() == 0:
            return
        names = self._devices.now()
        common = dict(os.environ)
        common.pop("GANDIVA_CONTROL_DIR", None)  # the launcher speaks for the job
        port, report = free_port(), self.reports.descriptor
        common[FD_NAME] = f"{report}:{os.fstat(report).st_ino}"
        if names != [""]:
            common["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        self._processes = []
        for rank in range(len(names)):
            environ = {**common, **variables(rank, len(names), port)}
            command = [sys.executable, *self._command]
            self._processes.append(subprocess.Popen(command, env=environ, pass_fds=[report]))
        print(f"gandiva.ranks: started {len(names)} ranks", file=sys.stderr, flush=True)

    def offload(self) -> int:
        """End all ranks. Those that do not end are killed, and start from an older checkpoint."""
        end(self._processes, self._grace_seconds)
        return 0

    def signal(self, number: int) -> None:
        """A signal that means the training: to the ranks that there are now."""
        send(self._processes, number)

    def ended(self) -> Optional[int]:
        """The exit status of the training; None while it goes on."""
        return status(self._processes)


def run(command: Sequence[str], grace_seconds: float, session: Session) -> int:
    """The training from its first rank to its last. Returns its exit status."""
    stop: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    ranks = Ranks(command, Devices(os.environ, session), grace_seconds)
    for passed_on in PASSED_ON:
        signal.signal(passed_on, lambda number, _frame: ranks.signal(number))
    ranks.restore()
    session.register(ranks, name="ranks")
    session.on_resize(lambda _gpus: None)
    while not stop:
        code = ranks.ended()
        if code is not None:
            ranks.offload()
            return code
        done = ranks.reports.take()
        # Asked by the scheduler the ranks need be at no boundary: they save when they are ended.
        if done or session.asked:
            session.step(sum(done))
        ranks.reports.wait(LOOK_SECONDS)
    ranks.offload()
    return STOPPED


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m gandiva.ranks", description=__doc__)
    parser.add_argument(
        "--grace", type=float, default=GRACE_SECONDS, help="seconds from SIGTERM to SIGKILL (%(default)g)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGUMENT …]")
    options: Any = parser.parse_args(arguments)
    if not options.command:
        parser.error("which script?")
    with attach(rank=0, world_size=1) as session:
        return run(options.command, options.grace, session)


if __name__ == "__main__":
    sys.exit(main())
