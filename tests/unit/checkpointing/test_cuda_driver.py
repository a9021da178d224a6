# SPDX-License-Identifier: GPL-2.0-or-later
"""The binding of the driver's checkpoint calls, against the mock driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing import cuda_driver
from checkpointing.cuda_driver import (
    NOT_READY,
    Capabilities,
    CudaError,
    CudaUnavailable,
    ProcessState,
    parse_uuid,
)
from checkpointing.driver_process import DriverDeadline, DriverProcesses
from tests.unit.halting import halt

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0

TARGET = """
import sys, time
import mockcuda
mockcuda.init()
context = mockcuda.Context(0)
address = context.alloc(64 << 20)
context.copy_in(address, b"precious")
print("ready", flush=True)
for line in sys.stdin:
    print(context.copy_out(address, 8).decode(), flush=True)
"""


class Machine:
    """Two mock GPUs and a process on the first one."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.libraries = libraries
        devices = folder / "dev"
        devices.mkdir()
        for index in range(2):
            (devices / f"nvidia{index}").touch()
        (folder / "gpus").mkdir()
        self.environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "MOCKGPU_DIR": str(folder / "gpus"),
            "MOCKGPU_DEV_DIR": str(devices),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
        }
        self.mockgpu("init", "--gpus", "2")
        self.target = subprocess.Popen(
            [sys.executable, "-c", TARGET],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.target.stdout is not None
        assert self.target.stdout.readline() == "ready\n"
        self.driver = DriverProcesses(self.environ)

    def mockgpu(self, *arguments: str) -> None:
        command = [str(self.libraries / "mockgpu"), *arguments]
        subprocess.run(command, env=self.environ, check=True, capture_output=True, timeout=SECONDS)

    def contents(self) -> str:
        """What the process reads back from its GPU memory."""
        assert self.target.stdin is not None
        assert self.target.stdout is not None
        self.target.stdin.write("\n")
        self.target.stdin.flush()
        return self.target.stdout.readline().strip()

    def close(self) -> None:
        self.driver.close()
        self.target.kill()
        self.target.wait()
        for stream in (self.target.stdin, self.target.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def machine(tmp_path: Path, mock_gpu: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, mock_gpu)
    yield made
    made.close()


def test_the_arguments_have_the_size_of_the_header() -> None:
    structures = (
        cuda_driver._LockArgs,
        cuda_driver._CheckpointArgs,
        cuda_driver._RestoreArgs,
        cuda_driver._UnlockArgs,
    )
    for structure in structures:
        assert ctypes.sizeof(structure) == cuda_driver.ARGUMENT_BYTES
    assert ctypes.sizeof(cuda_driver._GpuPair) == 32
    assert cuda_driver._RestoreArgs.gpu_pairs_count.offset == 8


@pytest.mark.parametrize(
    ("version", "checkpoint", "device_map"),
    [
        ("550.54.15", False, False),
        ("570.86.10", True, False),
        ("580.65.06", True, True),
        ("610", True, True),
        ("", False, False),
        ("unknown", False, False),
        ("5800000000.1", False, False),
    ],
)
def test_capabilities(version: str, checkpoint: bool, device_map: bool) -> None:
    assert Capabilities.of_version(version) == Capabilities(checkpoint, device_map)


def test_uuids() -> None:
    text = "GPU-5a972755-b0f9-4065-8c10-9412ea65f72b"
    assert parse_uuid(text).hex() == "5a972755b0f940658c109412ea65f72b"
    for wrong in ("", "5a972755-b0f9-4065-8c10-9412ea65f72b", f"{text}\n", f"MIG-{text}", text[:-1]):
        with pytest.raises(ValueError, match="no GPU UUID"):
            parse_uuid(wrong)


def test_there_and_back(machine: Machine) -> None:
    pid, driver = machine.target.pid, machine.driver
    assert driver.is_cuda_process(pid, SECONDS)
    assert not driver.is_cuda_process(os.getpid(), SECONDS)
    assert driver.state(pid, SECONDS) is ProcessState.RUNNING
    driver.lock(pid, 5.0, SECONDS)
    assert driver.state(pid, SECONDS) is ProcessState.LOCKED
    driver.checkpoint(pid, SECONDS)
    assert driver.state(pid, SECONDS) is ProcessState.CHECKPOINTED
    driver.restore(pid, None, SECONDS)
    assert driver.state(pid, SECONDS) is ProcessState.LOCKED
    driver.unlock(pid, SECONDS)
    assert driver.state(pid, SECONDS) is ProcessState.RUNNING
    assert machine.contents() == "precious"


def test_errors_name_the_call_and_the_result(machine: Machine) -> None:
    with pytest.raises(
        CudaError, match=r"cuCheckpointProcessRestore failed: CUDA_ERROR_ILLEGAL_STATE \(401\)"
    ):
        machine.driver.restore(machine.target.pid, None, SECONDS)
    with pytest.raises(CudaError) as refused:
        machine.driver.state(os.getpid(), SECONDS)
    assert refused.value.call == "cuCheckpointProcessGetState"
    machine.mockgpu("inject", "lock-timeout")
    with pytest.raises(CudaError) as refused:
        machine.driver.lock(machine.target.pid, 0.1, SECONDS)
    assert refused.value.code == NOT_READY
    assert machine.driver.state(machine.target.pid, SECONDS) is ProcessState.RUNNING


def test_a_call_that_hangs_is_abandoned_and_the_next_one_works(machine: Machine) -> None:
    pid, driver = machine.target.pid, machine.driver
    driver.warm_up()
    halt(pid)
    began = time.monotonic()
    with pytest.raises(DriverDeadline, match="not back after"):
        driver.lock(pid, 600.0, 0.3)
    assert time.monotonic() - began < SECONDS
    os.kill(pid, signal.SIGCONT)
    # It was not killed in the middle of the call, which would have left the target out of sync for ever.
    while driver.state(pid, SECONDS) is not ProcessState.LOCKED:
        assert time.monotonic() - began < 2 * SECONDS
    driver.unlock(pid, SECONDS)
    assert machine.contents() == "precious"


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    with contextlib.suppress(OSError):
        ctypes.CDLL(cuda_driver.LIBRARY)
        pytest.skip("there is a driver on this machine")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    driver = DriverProcesses(environ)
    try:
        with pytest.raises(CudaUnavailable, match=r"libcuda\.so\.1"):
            driver.warm_up()
    finally:
        driver.close()


def test_a_library_without_the_calls_is_too_old() -> None:
    with pytest.raises(CudaUnavailable, match="cuInit"):
        cuda_driver.CudaDriver("libc.so.6")
