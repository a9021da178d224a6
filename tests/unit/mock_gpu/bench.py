# SPDX-License-Identifier: GPL-2.0-or-later
"""A node with mock GPUs in a temporary folder, and processes on it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.unit.halting import halt

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE = REPOSITORY / "container" / "mock_gpu"
EXAMPLES = REPOSITORY / "examples"
WORKER = Path(__file__).with_name("worker.py")

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 400 * MIB
COMMUNICATOR = 600 * MIB

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
NO_DEVICE = 100
OPERATING_SYSTEM = 304
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_PERMITTED = 800
NOT_SUPPORTED = 801
TIMEOUT = 909
UNKNOWN = 999


class CallError(Exception):
    """A CUDA call of a worker failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUresult {code}")
        self.code = code


class Worker:
    """A process that uses the node's GPUs; see worker.py."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            text=True,
        )
        self.pid = self._process.pid

    def send(self, *request: Any) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answered(self, seconds: float) -> bool:
        """Whether an answer comes within this time."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"worker {self.pid} ended with {self._process.wait()}")
        found = json.loads(line)
        if "error" in found:
            raise CallError(found["error"])
        return found["result"]

    def ask(self, *request: Any) -> Any:
        """One CUDA call in that process. Raises CallError with its CUresult."""
        self.send(*request)
        return self.answer()

    def code(self, *request: Any) -> int:
        """The CUresult of one call."""
        try:
            self.ask(*request)
        except CallError as error:
            return error.code
        return 0

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGSTOP:
            halt(self.pid)
        else:
            os.kill(self.pid, number)

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Fails when the condition does not come true in a time that is ample."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


class Node:
    """The mock GPUs of one node."""

    def __init__(self, build: Path, folder: Path) -> None:
        self._build = build
        self._folder = folder
        self.command = build / "mockgpu"
        self._workers: list[Worker] = []
        self.devices = folder / "dev"
        self.devices.mkdir()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()

    def environ(self, **extra: str) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "CUDA_", "GANDIVA", "MOCKGPU"))
        }
        return inherited | {
            "MOCKGPU_DIR": str(self._folder / "state"),
            "MOCKGPU_DEV_DIR": str(self.devices),
            "LD_LIBRARY_PATH": str(self._build),
            "PYTHONPATH": str(REPOSITORY),
            # Agents of tests beside this one would take a process that names no node for their own.
            "SLURMD_NODENAME": f"bench-{os.getpid()}",
            **extra,
        }

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command mockgpu."""
        done = subprocess.run(
            [str(self.command), *command],
            capture_output=True,
            text=True,
            env=self.environ(),
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def cuda_checkpoint(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._build / "cuda-checkpoint"), *arguments],
            capture_output=True,
            text=True,
            env=self.environ(),
            timeout=60,
            check=False,
        )

    def resident(self, worker: Worker) -> int:
        """Bytes of host memory that are the process's own."""
        text = Path(f"/proc/{worker.pid}/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) << 10

    def init(self, *options: str, gpus: int = 2) -> Node:
        self.run("init", "--gpus", str(gpus), "--node", "test", "--jobs", "environment", *options)
        for index in range(gpus):
            (self.devices / f"nvidia{index}").touch()
        return self

    def show(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("show", "--json").stdout)
        return found

    def used(self, gpu: int = 0) -> int:
        return int(self.show()["gpus"][gpu]["used_bytes"])

    def on_gpu(self, gpu: int) -> dict[int, int]:
        """pid -> bytes, as NVML would list it."""
        return {
            process["pid"]: entry["used_bytes"]
            for process in self.show()["processes"]
            for entry in process["gpus"]
            if entry["gpu"] == gpu and entry["used_bytes"] > 0
        }

    def history(self, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("history", "--json", *options).stdout)
        return found

    def overlaps(self, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("overlaps", "--json", *options, check=False).stdout)
        return found

    def bare_worker(self, job: int = 0, **extra: str) -> Worker:
        """A process that has not called cuInit yet."""
        if job:
            extra["SLURM_JOB_ID"] = str(job)
        worker = Worker(self.environ(**extra))
        self._workers.append(worker)
        return worker

    def worker(self, job: int = 0, device: int | None = 0, **extra: str) -> Worker:
        """A process that has called cuInit and has a context (number 0) on the device."""
        worker = self.bare_worker(job, **extra)
        worker.ask("init")
        if device is not None:
            worker.ask("context", device)
        return worker
