# SPDX-License-Identifier: GPL-2.0-or-later
"""One node without Slurm: the real agent as a child process, jobs of an ordinary user, and a watcher.

A job gets what SPANK would give it: SLURM_JOB_ID, SLURMD_NODENAME and GANDIVA_CONTROL_DIR. It leaves its GPU
and comes back by the agent's verbs in the executor's order; in the place of Slurm's suspend and resume its
processes are stopped and continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from benchmarks.realgpu import watch
from controller.model import JobId
from controller.nodes.child import ChildTransport
from controller.nodes.connection import Channel, Patience
from controller.nodes.protocol import Offload
from controller.nodes.remote import RemoteNodes

ROOT = Path(__file__).resolve().parents[2]
MARK = "REALGPU_RUN"
"""In the environment of every process of a run, so that all of them can be found and ended."""
START_SECONDS = 180.0
"""Importing PyTorch for the first time on a machine can take a minute."""
STEP_SECONDS = 60.0
VERB_SECONDS = 90.0
POLL_SECONDS = 0.005

T = TypeVar("T")


class RigError(Exception):
    """The rig itself failed: a worker that ends early, a step that never comes."""


@dataclass(frozen=True)
class Place:
    """Where a run takes place."""

    scratch: Path
    gpu: int
    uid: int
    python: str
    """The jobs' interpreter."""
    mark: str

    @property
    def kit(self) -> Path:
        """What a job's user can read: the worker and what it imports."""
        return self.scratch / "kit"

    def environ(self) -> dict[str, str]:
        """For processes of the job's user."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "GANDIVA"))}
        return {
            **kept,
            MARK: self.mark,
            "HOME": str(self.scratch / "jobs"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.kit), kept.get("PYTHONPATH", "")))),
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts
            "CUDA_VISIBLE_DEVICES": str(self.gpu),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }

    def as_user(self) -> dict[str, Any]:
        """Arguments for Popen."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": []}


def make_place(place: Place) -> None:
    """Make the folders of a run; the job's user can enter them."""
    place.scratch.chmod(0o755)
    place.kit.mkdir()
    for source in ("benchmarks/realgpu/worker.py", "examples/mockcuda.py"):
        shutil.copy(ROOT / source, place.kit)
    shutil.copytree(ROOT / "gandiva", place.kit / "gandiva", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (place.kit, *place.kit.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    give_folder(place, place.scratch / "jobs")


def give_folder(place: Place, folder: Path) -> None:
    """A folder of the jobs' user."""
    folder.mkdir()
    folder.chmod(0o755)
    if place.uid != os.geteuid():
        os.chown(folder, place.uid, place.uid)


def remains(mark: str) -> list[int]:
    """Living processes of this run, but ours."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid not in (os.getpid(), os.getppid())]


def end_remains(mark: str, seconds: float = 20.0) -> list[int]:
    """SIGKILL to whatever is left; returns what would not end."""
    until = time.monotonic() + seconds
    while (left := remains(mark)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return left


class Job:
    """A worker."""

    def __init__(self, job_id: int, process: subprocess.Popen[bytes], folder: Path, managed: bool) -> None:
        self.job_id = JobId(job_id)
        self.process = process
        self.managed = managed
        self._folder = folder
        self.log = folder / "log"
        self.out = folder / "out"
        self.until = folder / "until"

    def entries(self) -> list[dict[str, Any]]:
        """All it has logged: steps and switches."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def steps(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if "step" in entry]

    def last_switch(self, which: str) -> dict[str, Any]:
        """The latest offload or restore as the job itself measured it; empty where it made none."""
        found = [entry for entry in self.entries() if entry.get("switch") == which]
        return found[-1] if found else {}

    def last_words(self) -> str:
        """The end of what it printed."""
        text = (self._folder / "printed").read_text(errors="replace").strip()
        return text[-600:] or "it printed nothing"

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes, as Slurm's suspend and resume do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def wait_for(self, what: str, condition: Callable[[], T | None], seconds: float) -> T:
        """Raises RigError when the worker ends first, or takes longer."""
        until = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            found = condition()
            if found:
                return found
            if ended:
                raise RigError(
                    f"job {self.job_id} ended with status {self.process.returncode} before {what}:"
                    f" {self.last_words()}"
                )
            if time.monotonic() > until:
                raise RigError(f"job {self.job_id}: no {what} within {seconds:g} s: {self.last_words()}")
            await asyncio.sleep(POLL_SECONDS)

    async def more_steps(self, count: int, seconds: float = STEP_SECONDS) -> None:
        """Wait until it has done so many steps more."""
        wanted = self.log_lines() + count
        await self.wait_for(f"{count} more steps", lambda: self.log_lines() >= wanted, seconds)

    def log_lines(self) -> int:
        return self.log.read_bytes().count(b'"step"') if self.log.exists() else 0

    async def end(self, seconds: float = STEP_SECONDS) -> Mapping[str, Any]:
        """Let it end at its next step boundary; its result."""
        self.until.touch()
        return await self.result(seconds)

    async def result(self, seconds: float) -> Mapping[str, Any]:
        """Wait for its end: steps and digests."""
        await self.wait_for("its result", self.out.exists, seconds)
        self.process.wait(timeout=30)
        self.signal(signal.SIGKILL)  # data workers that have not noticed yet
        found: Mapping[str, Any] = json.loads(self.out.read_text())
        return found


@dataclass(frozen=True)
class Left:
    """A job that left its GPU, and how long that took, in seconds."""

    pause_seconds: float
    offload_seconds: float
    session_seconds: float
    """What the job itself took of it."""
    parts: Mapping[str, float]
    count_seconds: float
    """What it took of the pause: it counts its tensors."""
    answer: Offload


class CountingTransport(ChildTransport):
    """Remembers its agents, so that one can be killed."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(arguments, environ)
        self.channels: list[Channel] = []

    def connect(self, node: str, address: str) -> Channel:
        channel = super().connect(node, address)
        self.channels.append(channel)
        return channel


def minor_number(number: int) -> int:
    """What the agent calls NVML's GPU of this number; the same where this process has no NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByIndex(number)))
    except pynvml.NVMLError:
        return number


@dataclass
class Rig:
    """A node with an agent; `async with` starts and ends it."""

    place: Place
    jobs: list[Job] = field(default_factory=list)

    async def __aenter__(self) -> Rig:
        self.node = f"realgpu-{os.getpid()}"
        self.run_dir = self.place.scratch / f"run-{os.getpid()}"
        self.run_dir.mkdir()
        self.run_dir.chmod(0o755)
        self.index = minor_number(self.place.gpu)
        environ = {**os.environ, MARK: self.place.mark}
        self.transport = CountingTransport(["--run-dir", str(self.run_dir), "--gpustat-dir", ""], environ)
        await self._connect()
        return self

    async def _connect(self) -> None:
        self.nodes = RemoteNodes(self.transport, Patience(connect_seconds=60.0, first_backoff_seconds=0.1))
        await self.nodes.set_nodes({self.node: "here"})
        self.hello = await self.nodes.hello(self.node, 60.0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for job in self.jobs:
            job.signal(signal.SIGKILL)
            job.process.wait()
        for job in self.jobs:
            if job.managed:
                with contextlib.suppress(Exception):
                    await self.nodes.forget(self.node, job.job_id)
        await self.nodes.close()

    async def kill_agent(self) -> None:
        """SIGKILL to the agent, not to the process in which it makes driver calls; then another agent."""
        process = getattr(self.transport.channels[-1], "_process")  # noqa: B009
        process.kill()
        process.wait()
        await self.nodes.close()
        await self._connect()

    def spawn(self, job_id: int, *arguments: str, managed: bool = True) -> Job:
        """Start a worker; unmanaged it runs undisturbed."""
        folder = self.place.scratch / "jobs" / f"{len(self.jobs)}-{os.getpid()}"
        give_folder(self.place, folder)
        environ = self.place.environ()
        if managed:
            environ |= {
                "SLURM_JOB_ID": str(job_id),
                "SLURMD_NODENAME": self.node,
                "GANDIVA_CONTROL_DIR": str(self.run_dir / str(job_id)),
            }
        command = [self.place.python, str(self.place.kit / "worker.py"), *arguments]
        command += ["--log", str(folder / "log"), "--out", str(folder / "out")]
        command += ["--until", str(folder / "until")]
        with (folder / "printed").open("wb") as printed:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.place.as_user(),
            )
        job = Job(job_id, process, folder, managed)
        self.jobs.append(job)
        return job

    async def start(self, job_id: int, *arguments: str) -> Job:
        """Prepare the control block, start a worker and wait for its first steps."""
        gpus = [self.index]
        await self.nodes.prepare(
            self.node,
            JobId(job_id),
            uid=self.place.uid,
            gpus=gpus,
            binding=gpus,
            deadline_seconds=VERB_SECONDS,
        )
        job = self.spawn(job_id, *arguments)
        await job.more_steps(3, START_SECONDS)
        return job

    async def leave(self, job: Job, *, release_context: bool = True, residual_bytes: int = 0) -> Left:
        """Off the GPU with the help of its session. Raises NodeError; then it runs on."""
        begin = time.perf_counter()
        await self.nodes.pause(self.node, job.job_id, floor_step=0, wait_seconds=30.0, sole=True)
        paused = time.perf_counter()
        answer = await self.nodes.offload(
            self.node,
            job.job_id,
            residual_limit_bytes=residual_bytes,
            release_context=release_context,
            deadline_seconds=VERB_SECONDS,
        )
        took = time.perf_counter() - paused
        own, count = job.last_switch("offload"), job.last_switch("count")
        await self._suspended(job)
        return Left(
            paused - begin,
            took,
            own.get("seconds", 0.0),
            own.get("parts", {}),
            count.get("seconds", 0.0),
            answer,
        )

    async def checkpoint(self, job: Job, deadline_seconds: float = VERB_SECONDS) -> Left:
        """Off the GPU by the driver alone. Raises NodeError; then it runs on."""
        begin = time.perf_counter()
        answer = await self.nodes.checkpoint(
            self.node, job.job_id, residual_limit_bytes=0, deadline_seconds=deadline_seconds
        )
        took = time.perf_counter() - begin
        await self._suspended(job)
        return Left(0.0, took, 0.0, {}, 0.0, answer)

    async def _suspended(self, job: Job) -> None:
        """What Slurm's suspend does, and the check that follows it."""
        job.signal(signal.SIGSTOP)
        await self.nodes.stop(self.node, job.job_id, deadline_seconds=VERB_SECONDS)

    async def come_back(self, job: Job) -> float:
        """Onto the GPU again, and running; returns the seconds it took. Raises NodeError."""
        begin = time.perf_counter()
        job.signal(signal.SIGCONT)
        gpus = [self.index]
        await self.nodes.resume(self.node, job.job_id, gpus=gpus, binding=gpus, deadline_seconds=VERB_SECONDS)
        return time.perf_counter() - begin

    async def undisturbed(self, runs: Sequence[Sequence[str]], seconds: float) -> list[Mapping[str, Any]]:
        """Results of workers that run all at once, without an agent."""
        jobs = [self.spawn(0, *arguments, "--no-session", managed=False) for arguments in runs]
        return [await job.result(seconds) for job in jobs]


@contextlib.contextmanager
def watcher(place: Place) -> Iterator[Path]:
    """A watcher of this GPU, as a process of its own; yields the file it writes."""
    out = place.scratch / f"watch-{time.monotonic_ns()}"
    command = [sys.executable, str(Path(watch.__file__)), "--gpu", str(place.gpu), "--out", str(out)]
    process = subprocess.Popen(command, env={**os.environ, MARK: place.mark}, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while not (out.exists() and out.stat().st_size):
            if process.poll() is not None or time.monotonic() > until:
                raise RigError("the watcher does not start: it needs pynvml and libnvidia-ml.so.1")
            time.sleep(0.01)
        yield out
    finally:
        process.terminate()
        process.wait(timeout=30)
