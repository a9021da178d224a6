# SPDX-License-Identifier: GPL-2.0-or-later
"""Mock GPUs on this machine, and `gandiva run` on them: for benchmarks that need no Slurm."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = f"{sys.executable} {ROOT / 'examples' / 'train_mock.py'}"


class Workstation:
    """Mock GPUs whose state is in a folder, which all processes share that have its environment."""

    def __init__(self, folder: Path, gpus: int, copy_rate: str = "0") -> None:
        """`copy_rate`: bytes per second between host and GPU, such as "12GiB"; "0": copies take no time.

        Raises subprocess.CalledProcessError: the mock GPU cannot be compiled, or cannot be set up.
        """
        self.folder = folder
        libraries = folder / "mock_gpu"
        for name in ("dev", "gpus"):
            (folder / name).mkdir()
        for index in range(gpus):
            (folder / "dev" / f"nvidia{index}").touch()
        others = ("SLURM", "GANDIVA", "CUDA", "PYTHON")
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(others)},
            "LD_LIBRARY_PATH": str(libraries),
            "MOCKGPU_DIR": str(folder / "gpus"),
            "MOCKGPU_DEV_DIR": str(folder / "dev"),
            "PYTHONPATH": str(ROOT),
        }
        make = ["make", "-s", "-C", str(ROOT / "container" / "mock_gpu"), f"BUILD={libraries}", "all"]
        subprocess.run(make, check=True)
        init = [str(libraries / "mockgpu"), "init", "--gpus", str(gpus), "--node", f"ws-{uuid.uuid4().hex}"]
        init += ["--jobs", "environment", "--copy-rate", copy_rate]
        subprocess.run(init, env=self.environ, check=True, stdout=subprocess.DEVNULL)

    def run(self, *words: object, given: str = "") -> subprocess.Popen[bytes]:
        """Start `gandiva run` with these words. `given`: on standard input. What it says is in `said`."""
        command = [sys.executable, "-m", "controller.cli.main", "run", *map(str, words)]
        source = self.folder / "given"
        source.write_text(given)
        with source.open("rb") as stdin, self.said.open("ab") as said:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdin=stdin, stdout=said, stderr=said
            )

    @property
    def said(self) -> Path:
        """What all `gandiva run` here have said."""
        return self.folder / "said"


@contextlib.contextmanager
def workstation(gpus: int, copy_rate: str = "0") -> Iterator[Workstation]:
    """One in a temporary folder. What was started there should have ended by the end."""
    # A name that leaves room for that of a socket.
    with tempfile.TemporaryDirectory(prefix="gandiva-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Workstation(Path(name), gpus, copy_rate)
