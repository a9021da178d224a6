# SPDX-License-Identifier: GPL-2.0-or-later
"""A Docker engine to talk to: the one that runs, else one that we install and start ourselves.

A dockerd that we started is recorded (pid and start time) so that `gandiva-cluster clean` can end it, and
only it. Machines without an init system (CI containers, small virtual machines) are the case this is for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import docker
import docker.errors

from container.errors import EngineError

API_TIMEOUT_SECONDS: Final = 60
"""Deadline of one call to the engine; calls that may take longer bring their own."""

_STATE: Final = Path("/run/gandiva-minicluster")
_RECORD: Final = _STATE / "dockerd.json"
_LOG: Final = Path("/var/log/gandiva-minicluster-dockerd.log")
_PING_SECONDS: Final = 5
_START_SECONDS: Final = 30
_APT_SECONDS: Final = 600

Report = Callable[[str], None]


def connect(*, install: bool = True, report: Report = lambda _: None) -> Any:
    """A client of a running engine.

    Args:
        install: install Docker (Debian's `docker.io`) and start `dockerd` where none answers.
        report: called with one line for each thing that takes long.

    Raises:
        EngineError: no engine answers, and none could be made to; the message says what to do.
    """
    client = _ping()
    if client is not None:
        return client
    if os.environ.get("DOCKER_HOST"):
        raise EngineError(f"no Docker engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}")
    if not install:
        raise EngineError("no Docker engine answers: start one, or run `gandiva-cluster build`")
    if os.geteuid() != 0:
        raise EngineError(
            "no Docker engine answers, and only root can start one: run as root, or install Docker, "
            "start it and join the group docker"
        )
    with exclusive("engine"):
        client = _ping()  # Another process may have started it while we waited for the lock.
        if client is None:
            _install(report)
            _start(report)
            client = _ping()
    if client is None:
        raise EngineError(f"dockerd was started but does not answer; see {_LOG}")
    return client


def stop_started_engine() -> bool:
    """End the dockerd that :func:`connect` started; False where it started none (or it is gone)."""
    with exclusive("engine"):
        record = _read_record()
        if record is None:
            return False
        pid, started = record
        _RECORD.unlink(missing_ok=True)
        if _start_time(pid) != started:
            return False  # It ended, and the pid may now be someone else's.
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _START_SECONDS
        while _start_time(pid) == started:
            if time.monotonic() > deadline:
                raise EngineError(f"dockerd (pid {pid}) did not end within {_START_SECONDS} s of SIGTERM")
            time.sleep(0.1)
        return True


def _ping() -> Any | None:
    try:
        client = docker.from_env(timeout=_PING_SECONDS)
        client.ping()
    except (docker.errors.DockerException, OSError):
        return None
    client.api.timeout = API_TIMEOUT_SECONDS
    return client


def _install(report: Report) -> None:
    if shutil.which("dockerd"):
        return
    if not shutil.which("apt-get"):
        raise EngineError("no dockerd and no apt-get: install Docker by your system's own means")
    report("installing docker.io with apt-get")
    for command in (
        ["apt-get", "-q", "update"],
        ["apt-get", "-q", "install", "-y", "--no-install-recommends", "docker.io", "iptables"],
    ):
        _run(command)


def ensure_tool(name: str, package: str, report: Report) -> str:
    """Path of a host command, installing Debian's package for it where it is missing."""
    path = shutil.which(name)
    if path is None:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise EngineError(f"{name} is missing: install the package {package}")
        report(f"installing {package} with apt-get")
        _run(["apt-get", "-q", "update"])
        _run(["apt-get", "-q", "install", "-y", "--no-install-recommends", package])
        path = shutil.which(name)
    if path is None:
        raise EngineError(f"{package} was installed but brought no {name}")
    return path


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_APT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{' '.join(command)}: no end after {_APT_SECONDS} s") from error
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command)} failed: {(done.stderr or done.stdout)[-1500:]}")


def _start(report: Report) -> None:
    report("starting dockerd")
    _remove_stale_pid_file()
    command = ["dockerd"]
    if not Path("/etc/docker/daemon.json").exists():  # dockerd refuses a setting that is given twice.
        command += ["--storage-driver", "overlay2"]
    with _LOG.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    started = _start_time(process.pid)
    _RECORD.write_text(json.dumps({"pid": process.pid, "start_time": started}))
    deadline = time.monotonic() + _START_SECONDS
    while _ping() is None:
        if process.poll() is not None:
            _RECORD.unlink(missing_ok=True)
            raise EngineError(f"dockerd ended with status {process.returncode}: {_log_tail()}")
        if time.monotonic() > deadline:
            raise EngineError(f"dockerd did not answer within {_START_SECONDS} s: {_log_tail()}")
        time.sleep(0.1)


def _remove_stale_pid_file() -> None:
    """A machine that was cut off keeps it, and dockerd refuses to start once any process has that number."""
    file = Path("/var/run/docker.pid")
    try:
        name = Path("/proc", file.read_text().strip(), "comm").read_text().strip()
    except OSError:
        return  # No such file, or no such process: dockerd sorts that out itself.
    if name != "dockerd":
        file.unlink(missing_ok=True)


def _log_tail() -> str:
    return _LOG.read_text(errors="replace")[-1500:]


def _read_record() -> tuple[int, int] | None:
    try:
        record = json.loads(_RECORD.read_text())
        return int(record["pid"]), int(record["start_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: with the pid it names one process for ever. None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """One process at a time: two test runs at once must not start two engines or make an image twice.

    Raises:
        EngineError: the folder of the locks is a link or another user's, who could make us write anywhere.
    """
    folder = _STATE if os.geteuid() == 0 else Path(tempfile.gettempdir(), f"gandiva-{os.geteuid()}")
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EngineError(f"{folder} is not a folder of yours: have it removed")
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
