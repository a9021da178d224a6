# SPDX-License-Identifier: GPL-2.0-or-later
"""A node in a folder: mock GPUs, control blocks, an agent as a child process, training jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controller.model import JobId
from controller.nodes.child import ChildTransport
from controller.nodes.connection import Channel, Patience
from controller.nodes.port import NodeSample
from controller.nodes.protocol import NodeJob
from controller.nodes.remote import RemoteNodes
from tests.unit.mounts import mountable, unmount_below

__all__ = ["mountable"]

ROOT = Path(__file__).resolve().parents[3]
NODE = f"n1-{os.getpid()}"
"""Tests that run side by side are nodes of their own: processes are told apart by it."""
MIB = 1 << 20
CONTEXT_BYTES = 400 * MIB
PATIENCE_SECONDS = 60.0
"""How long a test waits for something that must happen; never reached in a good run."""

T = TypeVar("T")


@pytest.fixture(autouse=True)
def unmounted(tmp_path: Path) -> Iterator[None]:
    """Where tests run as root, the rank files of a job have a file system of their own."""
    yield
    unmount_below(tmp_path)


def eventually(what: str, condition: Callable[[], T | None]) -> T:
    """Wait until a condition gives something true; fail, saying what was waited for, when it never does."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}")


class Job:
    """A running `examples/train_mock.py` with one or more ranks."""

    def __init__(
        self, rig: Rig, job_id: int, processes: Sequence[subprocess.Popen[bytes]], out: Path, ranks: int = 0
    ) -> None:
        self.job_id = JobId(job_id)
        self.processes = processes
        self.ranks = ranks or len(processes)
        self._rig, self._out = rig, out

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def wait(self) -> list[dict[str, Any]]:
        """Wait for its end, which comes soon then, and return every rank's result."""
        with self._rig.in_a_hurry(self):
            for process in self.processes:
                assert process.wait(timeout=PATIENCE_SECONDS) == 0, f"exit status {process.returncode}"
        return [
            json.loads(Path(str(self._out).replace("%r", str(rank))).read_text())
            for rank in range(self.ranks)
        ]

    def has_ended(self) -> bool:
        """Or a rank of it."""
        return any(process.poll() is not None for process in self.processes)

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        """What the rank has logged so far, a line per step."""
        path = Path(str(self._out).replace("%r", str(rank)) + ".log")
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class RecordingTransport(ChildTransport):
    """Remembers the agents it started, so that a test can kill one."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(arguments, environ)
        self.channels: list[Channel] = []

    def connect(self, node: str, address: str) -> Channel:
        channel = super().connect(node, address)
        self.channels.append(channel)
        return channel


class Rig:
    """One node, named n1, with four mock A100s of 80 GiB."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.gpustat = folder / "gpustat"
        self.libraries = libraries
        self.jobs: list[Job] = []
        self.groups: list[int] = []
        """Process groups of programs that start others."""
        devices = folder / "dev"
        devices.mkdir()
        for index in range(4):
            (devices / f"nvidia{index}").touch()
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))},
            "LD_LIBRARY_PATH": str(libraries),
            "MOCKGPU_DIR": str(folder / "gpus"),
            "MOCKGPU_DEV_DIR": str(devices),
            "PYTHONPATH": str(ROOT),
        }
        (folder / "gpus").mkdir()
        self.mockgpu("init", "--gpus", "4", "--node", NODE, "--jobs", "environment")
        self.transport = self.agents()

    def agents(self, **environ: str) -> RecordingTransport:
        """A way to start agents, with more in their environment."""
        return RecordingTransport(
            ["--run-dir", str(self.run_dir), "--gpustat-dir", str(self.gpustat)], {**self.environ, **environ}
        )

    def mockgpu(self, *arguments: str) -> str:
        return subprocess.run(
            [str(self.libraries / "mockgpu"), *arguments],
            env=self.environ,
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        ).stdout

    @contextlib.contextmanager
    def in_a_hurry(self, job: Job) -> Iterator[None]:
        """Meanwhile kernels take next to no time where the job is: no result depends on it."""

        def places() -> list[set[int]]:
            shown = json.loads(self.mockgpu("show", "--json"))["processes"]
            mine = [process["gpus"] for process in shown if process["job_id"] == job.job_id]
            return [{used["gpu"] for used in gpus} for gpus in mine if gpus]

        eventually("all ranks on GPUs", lambda: len(places()) >= job.ranks or job.has_ended())
        faults = [
            self.mockgpu("inject", "speed", "--gpu", str(gpu), "--value", "10000")
            for gpu in set[int]().union(*places())
        ]
        yield
        for fault in faults:
            self.mockgpu("inject", "--clear", fault.strip())

    def cuda_checkpoint(self, action: str, pid: int) -> None:
        """One driver call from outside, behind the agent's back."""
        subprocess.run(
            [str(self.libraries / "cuda-checkpoint"), "--action", action, "--pid", str(pid)],
            env=self.environ,
            check=True,
            timeout=PATIENCE_SECONDS,
        )

    def nodes(self) -> RemoteNodes:
        return RemoteNodes(self.transport, Patience(PATIENCE_SECONDS, first_backoff_seconds=0.05))

    def run(self, scenario: Callable[[RemoteNodes], Coroutine[Any, Any, T]]) -> T:
        """Carry out a scenario with an agent."""

        async def inside() -> T:
            nodes = self.nodes()
            await nodes.set_nodes({NODE: "here"})
            try:
                return await scenario(nodes)
            finally:
                await nodes.close()

        return asyncio.run(inside())

    def start(
        self,
        job_id: int,
        *arguments: str,
        ranks: int = 1,
        gpus: str = "",
        binding: str = "",
        managed: bool = True,
    ) -> Job:
        """Start a training job as SPANK would: `binding` is Slurm's CUDA_VISIBLE_DEVICES, `gpus` are the
        positions in it that the job may use."""
        out = self.folder / f"job{job_id}-%r.json"
        environ = {**self.environ, "SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": NODE}
        if gpus:
            environ["CUDA_VISIBLE_DEVICES"] = gpus
        if binding:
            environ["SLURM_JOB_GPUS"] = binding
        if managed:
            environ["GANDIVA_CONTROL_DIR"] = str(self.run_dir / str(job_id))
        log = (self.folder / f"job{job_id}.out").open("ab")
        processes = []
        for rank in range(ranks):
            mine = dict(environ)
            if ranks > 1 and gpus:
                mine["CUDA_VISIBLE_DEVICES"] = gpus.split(",")[rank]
            processes.append(
                subprocess.Popen(
                    [
                        *(sys.executable, str(ROOT / "examples" / "train_mock.py"), *arguments),
                        *("--rank", str(rank), "--ranks", str(ranks), "--meeting", str(self.folder)),
                        *("--state-out", str(out), "--log", f"{out}.log"),
                    ],
                    env=mine,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        log.close()
        # In the middle of exec a process has no environment for a moment, and so belongs to no job.
        eventually(
            "processes that tell their job",
            lambda: {p.pid for p in processes if p.poll() is None} <= set(remains()),
        )
        job = Job(self, job_id, processes, out)
        self.jobs.append(job)
        return job

    def start_other(self, job_id: int, *command: str) -> Job:
        """Start a program of a job that uses no GPU (yet)."""
        environ = {**self.environ, "SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": NODE}
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
        self.groups.append(process.pid)
        job = Job(self, job_id, [process], self.folder)
        self.jobs.append(job)
        return job

    def wait_for_steps(self, job: Job, count: int) -> None:
        eventually(f"{count} steps of job {job.job_id}", lambda: len(job.steps()) >= count)

    def held(self) -> dict[int, int]:
        """Bytes in use on each GPU, from the mock itself and not through the agent."""
        shown = json.loads(self.mockgpu("show", "--json"))
        return {gpu["index"]: gpu["used_bytes"] for gpu in shown["gpus"]}

    def close(self) -> None:
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for job in self.jobs:
            job.kill()
        # Whatever else lives of them would be taken for processes of the next test's jobs.
        eventually("the end of all processes", lambda: not end_remains())


def end_remains() -> list[int]:
    """End what is left; returns what was."""
    left = remains()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def remains() -> list[int]:
    """Processes of jobs on this node."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"SLURMD_NODENAME={NODE}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture
def rig(tmp_path: Path, mock_gpu: Path) -> Iterator[Rig]:
    """A fresh node."""
    made = Rig(tmp_path, mock_gpu)
    yield made
    made.close()


async def sample(nodes: RemoteNodes) -> NodeSample:
    """What the agent of n1 sees; fails when it sees nothing."""
    found = (await nodes.observe(PATIENCE_SECONDS))[NODE]
    assert isinstance(found, NodeSample), found
    return found


async def job_sample(nodes: RemoteNodes, job: Job) -> NodeJob:
    """What the agent of n1 knows about one job."""
    return (await sample(nodes)).jobs[job.job_id]
