# SPDX-License-Identifier: MIT
"""Driver calls with a deadline: they are made in a child process that has called cuInit and stays.

A driver call cannot be interrupted, and one that hangs (a target in an uninterruptible wait, a broken GPU)
must not take the caller with it. The child is kept because cuInit takes seconds; a child that misses a
deadline is replaced. It is left to finish its call and then ends: NVIDIA's developers report that a target
gets out of sync for ever when the maker of a call is killed in the middle of it (checkpoint-restore/criu
pull request 2547). Calls for several processes at once go to several children.

Run as `python -m checkpointing.driver_process` this module is that child: one JSON object per line on
standard input and output.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpointing.cuda_driver import CudaDriver, CudaError, CudaProcess, CudaUnavailable, ProcessState

START_SECONDS = 30.0
"""How long loading the driver and cuInit may take without persistence mode."""
MAX_IDLE_CHILDREN = 2
MAX_ANSWER_BYTES = 65536


class DriverDeadline(CudaError):
    """A driver call did not return in time. It goes on, and may still be carried out: ask for the target's
    state."""

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(call, -2, "no answer", f"not back after {seconds:.1f} s; the call was abandoned")


class _Child:
    """One child process, for one call at a time."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "checkpointing.driver_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_with_import_path(os.environ if environ is None else environ),
            cwd="/",  # -m imports from the working directory first: let that be nobody's
            # Not in our group: a Ctrl-C meant for the caller must not break a call in mid-flight.
            start_new_session=True,
        )
        self._buffer = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises TimeoutError or EOFError; then use kill()."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EOFError(f"the driver child is gone: {error}") from None
        return self._answer(time.monotonic() + seconds)

    def _answer(self, until: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            part = os.read(descriptor, 65536)
            if not part or len(self._buffer) > MAX_ANSWER_BYTES:
                raise EOFError("the driver child ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_ready(self) -> None:
        """Wait for cuInit. Raises CudaUnavailable or CudaError when that failed."""
        _raise_error(self._answer(time.monotonic() + START_SECONDS))

    def close(self) -> None:
        """Let it end: it does so when it has finished its call and finds its input closed."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        _reap_later(self._process)

    def kill(self) -> None:
        self._process.kill()
        self.close()


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    # A child stuck in the driver does not die of SIGKILL until the driver lets go: never wait in line.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def _with_import_path(environ: Mapping[str, str]) -> dict[str, str]:
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def _raise_error(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    error = answer.get("error")
    if error is None:
        return answer
    if error["code"] == -1:
        raise CudaUnavailable(error["call"], error["detail"])
    raise CudaError(error["call"], error["code"], error["name"], error["detail"])


class DriverProcesses:
    """Makes driver calls in child processes. Thread-safe; children are started when first needed."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def warm_up(self) -> None:
        """Have one child ready, so that the first call does not wait for cuInit. Raises CudaError."""
        self._give_back(self._take())

    def state(self, pid: int, deadline_seconds: float) -> ProcessState:
        """See CudaProcess.state. Raises CudaError, DriverDeadline."""
        return ProcessState(self._call("state", pid, deadline_seconds)["state"])

    def is_cuda_process(self, pid: int, deadline_seconds: float) -> bool:
        """Whether the process has initialized CUDA. Raises DriverDeadline, CudaUnavailable."""
        try:
            self._call("restore_thread_id", pid, deadline_seconds)
        except (DriverDeadline, CudaUnavailable):
            raise
        except CudaError:
            return False
        return True

    def lock(self, pid: int, timeout_seconds: float, deadline_seconds: float) -> None:
        """See CudaProcess.lock. Raises CudaError, DriverDeadline."""
        self._call("lock", pid, deadline_seconds, timeout_seconds=timeout_seconds)

    def checkpoint(self, pid: int, deadline_seconds: float) -> None:
        """See CudaProcess.checkpoint. Raises CudaError, DriverDeadline."""
        self._call("checkpoint", pid, deadline_seconds)

    def restore(self, pid: int, gpu_map: Mapping[str, str] | None, deadline_seconds: float) -> None:
        """See CudaProcess.restore. Raises CudaError, DriverDeadline."""
        self._call("restore", pid, deadline_seconds, gpu_map=dict(gpu_map or {}))

    def unlock(self, pid: int, deadline_seconds: float) -> None:
        """See CudaProcess.unlock. Raises CudaError, DriverDeadline."""
        self._call("unlock", pid, deadline_seconds)

    def close(self) -> None:
        """Let the children end. Calls in flight finish."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _call(self, verb: str, pid: int, deadline_seconds: float, **args: Any) -> Mapping[str, Any]:
        begin = time.monotonic()
        child = self._take()
        try:
            left = max(0.1, deadline_seconds - (time.monotonic() - begin))
            answer = child.ask({"verb": verb, "pid": pid, **args}, left)
        except TimeoutError:
            child.close()
            raise DriverDeadline(verb, deadline_seconds) from None
        except (EOFError, ValueError) as error:
            child.kill()
            raise CudaError(verb, -3, "driver child failed", str(error)) from None
        except BaseException:
            child.close()
            raise
        self._give_back(child)
        return _raise_error(answer)

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        child = _Child(self._environ)
        try:
            child.wait_ready()
        except TimeoutError:
            child.kill()
            raise DriverDeadline("cuInit", START_SECONDS) from None
        except (EOFError, ValueError) as error:
            child.kill()
            raise CudaUnavailable("cuInit", str(error)) from None
        except BaseException:
            child.kill()
            raise
        return child

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE_CHILDREN:
                self._idle.append(child)
                return
        child.close()


def _serve_one(driver: CudaDriver, request: Mapping[str, Any]) -> Mapping[str, Any]:
    process = CudaProcess(driver, int(request["pid"]))
    verb = request["verb"]
    if verb == "state":
        return {"state": int(process.state())}
    if verb == "restore_thread_id":
        return {"thread_id": process.restore_thread_id()}
    if verb == "lock":
        process.lock(float(request["timeout_seconds"]))
    elif verb == "checkpoint":
        process.checkpoint()
    elif verb == "restore":
        process.restore(request["gpu_map"])
    elif verb == "unlock":
        process.unlock()
    else:
        raise ValueError(f"unknown verb {verb!r}")
    return {}


def _error(error: CudaError) -> Mapping[str, Any]:
    return {"error": {"call": error.call, "code": error.code, "name": error.name, "detail": error.detail}}


def _child_main() -> int:
    def say(answer: Mapping[str, Any]) -> None:
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            os._exit(0)  # the caller is gone; what it asked for is done

    try:
        driver = CudaDriver()
    except CudaError as error:
        say(_error(error))
        return 1
    say({})
    for line in sys.stdin:
        try:
            say(_serve_one(driver, json.loads(line)))
        except CudaError as error:
            say(_error(error))
        except (ValueError, KeyError, TypeError) as error:
            say(
                {"error": {"call": "request", "code": -3, "name": type(error).__name__, "detail": str(error)}}
            )
    return 0


if __name__ == "__main__":
    sys.exit(_child_main())
