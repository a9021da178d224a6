# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials as child processes on this machine: how they are started, signalled and found again."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from controller.cluster import family, first
from controller.cluster.allocation import ends, is_over, place
from controller.cluster.family import Process
from controller.cluster.trial import Trial
from controller.errors import ClusterRefused
from controller.model import GpuId

FIRST = (sys.executable, "-I", "-S", str(Path(first.__file__)))
"""Begins the command of the first process of a trial."""
_NOT_PASSED_ON = frozenset({"CUDA_VISIBLE_DEVICES", "GANDIVA_MIN_GPUS", "GANDIVA_MAX_GPUS"})


class Children:
    """Implements `controller.cluster.local.Launcher`."""

    _named_by = "GANDIVA_CONTROL_DIR"
    """The variable by which processes here are known to be a trial's."""

    def __init__(
        self, folder: Path, run_dir: Path, uuids: Mapping[GpuId, str], environ: Mapping[str, str]
    ) -> None:
        """`folder`: for output and exit status. `run_dir`: where control blocks are. `uuids`: of the GPUs, in
        PCI order. `environ`: what trials inherit."""
        self._folder, self._run_dir, self._uuids = folder, run_dir, uuids
        self.place = place(environ)
        self.home = run_dir.name
        self.asks = self.place.startswith("job ")
        self._environ = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}

    def clear(self, trial: Trial) -> None:
        """The status of an earlier start."""
        self._exit_file(trial).unlink(missing_ok=True)

    def start(self, trial: Trial) -> Process:
        """Start it on the GPUs that it is bound to. Raises ClusterRefused."""
        command, environ = self._command(trial)
        try:
            with (self._folder / f"{trial.number}.out").open("ab") as out:
                started = subprocess.Popen(
                    [*FIRST, str(self._exit_file(trial)), *command],
                    env=environ,
                    cwd=trial.spec.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ClusterRefused(f"trial {trial.number}: {error.filename}: {error.strerror}") from error
        return family.process(started.pid)

    def _command(self, trial: Trial) -> tuple[Sequence[str], dict[str, str]]:
        """What is run here, and its environment."""
        uuids = ",".join(self._uuids_of(trial).values())
        environ = {**self._environ, **trial.spec.environment, **self._variables(trial), **_devices(uuids)}
        return trial.spec.command, environ

    def _uuids_of(self, trial: Trial) -> dict[str, str]:
        """Those of its GPUs, in PCI order, by node."""
        found: dict[str, list[str]] = {}
        wanted = frozenset(GpuId(*gpu) for gpu in trial.wanted)
        for gpu, uuid in self._uuids.items():
            if gpu in wanted:
                found.setdefault(gpu.node, []).append(uuid)
        return {node: ",".join(uuids) for node, uuids in found.items()}

    def _variables(self, trial: Trial) -> dict[str, str]:
        """What it finds in its environment on each node."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GANDIVA_ALLOCATION": self._environ.get("SLURM_JOB_ID", ""),
            "GANDIVA_CONTROL_DIR": self._control_dir(trial),
            "GANDIVA_JOB": "1",
            "GANDIVA_REPORT": str(self._folder / f"{trial.number}.report"),
            "GANDIVA_TRIAL": str(trial.number),
            "SLURM_RESTART_COUNT": str(trial.restarts),
        }

    def find(self, trial: Trial) -> Process | None:
        """The first process of a trial that was being started when the supervisor was killed."""
        found = [family.process(pid) for pid in self._strays(trial)]
        return min(filter(Process.lives, found), key=lambda process: process.ticks, default=None)

    def lives(self, trial: Trial) -> bool:
        """Whether processes of it are left."""
        if trial.process is not None and trial.process.lives():
            return True
        # The first process writes the status when nothing is left below it. Where it was killed, look closer.
        return not self._exit_file(trial).exists() and bool(self._strays(trial))

    def signal(self, trial: Trial, number: signal.Signals) -> None:
        """To all its processes, but to the first one only what stops it or lets it go on: it ends last."""
        if trial.process is None or not trial.process.lives():
            family.send(self._strays(trial), number)
            return
        pid = trial.process.pid
        below = family.below(pid)  # none: it has not started the command yet, and will pass the signal on
        whole = not below or number in (signal.SIGSTOP, signal.SIGCONT)
        family.send([*below, pid] if whole else below, number)

    def exit_code(self, trial: Trial) -> int | None:
        """Of a trial that does not live; None: its first process was killed before it could say it."""
        try:
            return int(self._exit_file(trial).read_text())
        except (OSError, ValueError):
            return None

    def ended_at(self, trial: Trial) -> float:
        """When its status was written, or now."""
        try:
            return self._exit_file(trial).stat().st_mtime
        except OSError:
            return time.time()

    def lost(self, trial: Trial) -> bool:
        """Whether its processes were ended with what was around them. Raises GandivaError: they may live."""
        return is_over(trial.place, self.place) or ends(self.place, self._nodes_in_slurm(trial))

    def _nodes_in_slurm(self, trial: Trial) -> Iterable[str]:
        """Those of its nodes that Slurm can take from the job while it goes on: not the supervisor's own."""
        return ()

    def forget(self, trial: Trial) -> None:
        """Its control block goes, as Slurm's epilog removes that of a job."""
        shutil.rmtree(self._control_dir(trial), ignore_errors=True)

    def _strays(self, trial: Trial) -> list[int]:
        return family.named(f"{self._named_by}={self._control_dir(trial)}")

    def _control_dir(self, trial: Trial) -> str:
        return str(self._run_dir / str(trial.number))

    def _exit_file(self, trial: Trial) -> Path:
        return self._folder / f"{trial.number}.exit"


def _devices(uuids: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": uuids, "GANDIVA_GPUS": uuids}
