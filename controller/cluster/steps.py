# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials as job steps of the Slurm allocation that the supervisor is in.

A step may open all GPUs of the allocation on its nodes, and is told by CUDA_VISIBLE_DEVICES which to use:
two overlapping steps that ask for one GPU both get the first one. srun sets that variable itself, so a shell
in the step sets it once more. A SIGTERM for srun would be a SIGKILL for the step; scancel brings signals.
"""

import contextlib
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from controller.cluster import first
from controller.cluster.children import FIRST, Children
from controller.cluster.trial import Trial

SECONDS = 10.0
"""The longest time for scancel."""
STEP = re.compile(r"(\d+\.\d+)\n")
"""Anything else, such as a line that is not whole yet, could name the job."""
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JWT"})
_OPTIONS = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")


def for_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """Without options of the job, such as SLURM_GPUS_PER_TASK, which srun would take for those of a step."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_OPTIONS)}


def srun(nodes: Sequence[str], name: str, *options: str) -> list[str]:
    """The beginning of a command that runs once on each of these nodes, beside all other steps."""
    count, where = len(nodes), ",".join(nodes)
    shape = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={where}")
    return ["srun", "--overlap", "--quiet", "--unbuffered", f"--job-name={name}", *shape, *options]


class Steps(Children):
    """Implements `controller.cluster.local.Launcher`."""

    _named_by = "GANDIVA_STEP_OF"

    def _command(self, trial: Trial) -> tuple[Sequence[str], dict[str, str]]:
        spec, uuids = trial.spec, self._uuids_of(trial)
        mebibytes = -(-spec.memory_bytes >> 20)
        options = (f"--cpus-per-task={spec.cpus}", f"--mem={mebibytes or 0}", "--kill-on-bad-exit=1")
        cases = "".join(f"{shlex.quote(node)}) g={shlex.quote(gpus)};; " for node, gpus in uuids.items())
        script = (
            f'case "$SLURMD_NODENAME" in {cases}esac; '
            'export CUDA_VISIBLE_DEVICES="$g" GANDIVA_GPUS="$g"; '
            f'echo "$SLURM_JOB_ID.$SLURM_STEP_ID" > {shlex.quote(str(self._step_file(trial)))}; exec "$@"'
        )
        variables = {**spec.environment, **self._variables(trial)}
        inside = ("env", *(f"{name}={value}" for name, value in variables.items()), "/bin/sh", "-c", script)
        trials = ("sh", *FIRST, first.NOWHERE, *spec.command)
        command = [*srun(tuple(uuids), spec.name, *options), *inside, *trials]
        return command, {**for_srun(self._environ), self._named_by: self._control_dir(trial)}

    def clear(self, trial: Trial) -> None:
        """Also which step it was."""
        super().clear(trial)
        self._step_file(trial).unlink(missing_ok=True)

    def signal(self, trial: Trial, number: signal.Signals) -> None:
        """To all processes of its step; before there is one, to srun."""
        try:
            step = STEP.fullmatch(self._step_file(trial).read_text())
        except FileNotFoundError:
            step = None
        if step is None:
            super().signal(trial, number)
        else:
            _run("scancel", f"--signal={number.name.removeprefix('SIG')}", step[1])

    def _nodes_in_slurm(self, trial: Trial) -> Iterable[str]:
        return {node for node, _ in trial.binding}

    def _step_file(self, trial: Trial) -> Path:
        """Says which step it is, as the step itself knows: names are the user's."""
        return self._folder / f"{trial.number}.step"


def _run(*command: str) -> None:
    """Slurm may be away, and the step be over: whoever sends a signal looks again."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
