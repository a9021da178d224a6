# SPDX-License-Identifier: GPL-2.0-or-later
"""A workstation in a folder: mock GPUs, and `gandiva run` as a process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.cluster.trial import Trial, read_trial
from controller.run.machine import run_dir

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_SECONDS = 120.0
"""Never reached in a good run."""
_DIGEST = re.compile(r"done, digest ([0-9a-f]{64})")


class Workstation:
    """Two mock GPUs; no Slurm."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.folder = folder
        self._mockgpu = libraries / "mockgpu"
        for name in ("dev", "gpus"):
            (folder / name).mkdir()
        for index in range(2):
            (folder / "dev" / f"nvidia{index}").touch()
        other = ("SLURM", "GANDIVA", "CUDA")
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(other)},
            "LD_LIBRARY_PATH": str(libraries),
            "MOCKGPU_DIR": str(folder / "gpus"),
            "MOCKGPU_DEV_DIR": str(folder / "dev"),
            "PYTHONPATH": str(ROOT),
            "WORKSTATION": str(folder),
        }
        self.mockgpu("init", "--gpus", "2", "--node", f"ws-{uuid.uuid4().hex}", "--jobs", "environment")
        self._runs: list[subprocess.Popen[str]] = []

    def mockgpu(self, *words: str) -> str:
        command = [str(self._mockgpu), *words]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        return done.stdout

    def train(self, steps: int, *words: str, milliseconds: int = 20) -> str:
        """The command of a training, with `{seed}` to be filled in."""
        fixed = f"--minibatch-ms {milliseconds} --memory-mb 500 --seed {{seed}} --steps {steps}"
        return " ".join([sys.executable, str(ROOT / "examples/train_mock.py"), fixed, *words])

    def program(self, name: str, script: str) -> None:
        """One that supervisors find before others of its name."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        new = folder / f"{name}.new"
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.replace(folder / name)
        if not self.environ["PATH"].startswith(f"{folder}:"):
            self.environ["PATH"] = f"{folder}:{self.environ['PATH']}"

    def study(self, text: str, name: str = "lr") -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(text)
        return file

    def gandiva(self, *words: object) -> str:
        """Another command of `gandiva`; what it says."""
        command = [sys.executable, "-m", "controller.cli.main", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def start(self, *words: object, given: str = "") -> subprocess.Popen[str]:
        """`gandiva run`. `given`: on standard input."""
        command = [sys.executable, "-m", "controller.cli.main", "run", *map(str, words)]
        source = self.folder / "given"
        source.write_text(given)
        with source.open() as stdin:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environ,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._runs.append(process)
        return process

    def run(self, *words: object, given: str = "") -> tuple[int, str]:
        """Until it ends; its exit status, and what it said."""
        process = self.start(*words, given=given)
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, said

    def run_dir(self, study: str = "lr") -> Path:
        """What is of this host only. (It is made where it is not there.)"""
        return run_dir(self.folder / study)

    def trials(self, study: str = "lr") -> dict[str, Trial]:
        """By name."""
        found = map(read_trial, sorted((self.folder / study / "trials").glob("*.json")))
        return {trial.spec.name: trial for trial in found}

    def output(self, number: int, study: str = "lr") -> str:
        file = self.folder / study / "trials" / f"{number}.out"
        return file.read_text() if file.exists() else ""

    def digests(self, study: str = "lr") -> dict[str, list[str]]:
        """What each training has computed, each time that it came to its end."""
        trials = self.trials(study).items()
        return {name: _DIGEST.findall(self.output(trial.number, study)) for name, trial in trials}

    def undisturbed(self, command: str, *seeds: int) -> dict[int, str]:
        """The digests of trainings that nothing stops, by seed."""
        faults = [self.mockgpu("inject", "speed", "--value", "1000")]
        found: dict[int, str] = {}
        for seed in seeds:
            words = command.format(seed=seed).split()
            done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=True)
            (found[seed],) = _DIGEST.findall(done.stdout + done.stderr)
        for fault in faults:
            self.mockgpu("inject", "--clear", fault.strip())
        return found

    def overlaps(self) -> str:
        """Trials that had memory on one GPU at the same time."""
        return self.mockgpu("overlaps")

    def processes(self) -> list[int]:
        """Of trials, of all studies here."""
        wanted = f"WORKSTATION={self.folder}\0".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def close(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while (left := self.processes()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._runs:
                process.poll()
            time.sleep(0.01)
        for process in self._runs:
            process.wait(PATIENCE_SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        for trials in self.folder.glob("*/trials"):
            shutil.rmtree(run_dir(trials.parent), ignore_errors=True)


def eventually(what: str, look: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.02)


@pytest.fixture
def workstation(tmp_path: Path, mock_gpu: Path) -> Iterator[Workstation]:
    made = Workstation(tmp_path, mock_gpu)
    yield made
    made.close()
