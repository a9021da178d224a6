# SPDX-License-Identifier: MIT
"""The CUDA driver's checkpoint calls, through ctypes on libcuda.so.1.

Layouts and prototypes are those of cuda.h 12.9, 13.0 and 13.5 (section "CUDA Checkpointing"), which agree on
every field used here; what one version reserves, another has given a meaning, and it is zero here.
The calls act on *another* process, by pid:

    RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING

A call can take as long as the target's kernels run, or copying its memory takes: `driver_process` makes them
in a child with a deadline.
"""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"

CHECKPOINT_MIN_DRIVER = 570
"""First driver branch with this API (the first one that has all six calls)."""
DEVICE_MAP_MIN_DRIVER = 580
"""First driver branch that restores onto other GPUs of the same type."""


class ProcessState(enum.IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    """Newer drivers, while another caller's checkpoint is under way; then LOCKED or CHECKPOINTED."""
    RESTORING = 5
    """The same of a restore."""


class CudaError(Exception):
    """A driver call failed. `call` is its name, `code` the CUresult, `name` that code's name."""

    def __init__(self, call: str, code: int, name: str, detail: str = "") -> None:
        super().__init__(f"{call} failed: {name} ({code}){': ' + detail if detail else ''}")
        self.call = call
        self.code = code
        self.name = name
        self.detail = detail


class CudaUnavailable(CudaError):
    """There is no usable driver on this machine, or it is too old for the call."""

    def __init__(self, call: str, detail: str) -> None:
        super().__init__(call, -1, "unavailable", detail)


# CUresult values that the checkpoint calls are documented to return.
SUCCESS = 0
NOT_READY = 600
RESULT_NAMES: Mapping[int, str] = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    401: "CUDA_ERROR_ILLEGAL_STATE",
    600: "CUDA_ERROR_NOT_READY",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


class _LockArgs(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class _CheckpointArgs(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


class _GpuPair(ctypes.Structure):
    _fields_ = (("old_uuid", _Uuid), ("new_uuid", _Uuid))


class _RestoreArgs(ctypes.Structure):
    _fields_ = (
        ("gpu_pairs", ctypes.POINTER(_GpuPair)),
        ("gpu_pairs_count", ctypes.c_uint),
        ("reserved", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("reserved1", ctypes.c_uint64),
    )


class _UnlockArgs(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


ARGUMENT_BYTES = 64
"""Size of each of the four argument structures, in every version of cuda.h so far."""

_PROTOTYPES: Mapping[str, tuple[type, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuCheckpointProcessGetState": (ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    "cuCheckpointProcessGetRestoreThreadId": (ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    "cuCheckpointProcessLock": (ctypes.c_int, ctypes.POINTER(_LockArgs)),
    "cuCheckpointProcessCheckpoint": (ctypes.c_int, ctypes.POINTER(_CheckpointArgs)),
    "cuCheckpointProcessRestore": (ctypes.c_int, ctypes.POINTER(_RestoreArgs)),
    "cuCheckpointProcessUnlock": (ctypes.c_int, ctypes.POINTER(_UnlockArgs)),
}


@dataclass(frozen=True)
class Capabilities:
    """What a driver of some version can do."""

    checkpoint: bool
    device_map: bool

    @classmethod
    def of_version(cls, driver_version: str) -> Capabilities:
        """By the version NVML reports, as "580.65.06"; an unreadable one can do nothing."""
        match = re.match(r"(\d{1,6})(?:\.|$)", driver_version)
        branch = int(match.group(1)) if match else 0
        return cls(branch >= CHECKPOINT_MIN_DRIVER, branch >= DEVICE_MAP_MIN_DRIVER)


def parse_uuid(text: str) -> bytes:
    """The 16 bytes of an NVML UUID ("GPU-8f7c…"). Raises ValueError for anything else (MIG has no such)."""
    match = re.fullmatch(r"GPU-([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})", text)
    if match is None:
        raise ValueError(f"{text!r} is no GPU UUID: need GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
    return bytes.fromhex(match.group(1).replace("-", ""))


class CudaDriver:
    """libcuda.so.1, initialized. One per process; the calls are thread-safe."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the library and call cuInit (restore needs that, or persistence mode).

        Raises CudaUnavailable without a driver, CudaError when cuInit fails.
        """
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaUnavailable("dlopen", f"{library}: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *args: object) -> None:
        """Call one function of the driver. Raises CudaError when it returns anything but success."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaUnavailable(
                name, f"{LIBRARY} has no such function: need driver >= {CHECKPOINT_MIN_DRIVER}"
            ) from None
        function.argtypes = _PROTOTYPES[name]
        function.restype = ctypes.c_int
        code = int(function(*args))
        if code != SUCCESS:
            raise CudaError(name, code, self._result_name(code))

    def _result_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            if self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == SUCCESS and text.value:
                return text.value.decode("ascii", "replace")
        except AttributeError:
            pass
        return RESULT_NAMES.get(code, "unknown CUresult")


class CudaProcess:
    """Another process that uses CUDA, seen through the checkpoint calls.

    Every method raises CudaError naming the call: CUDA_ERROR_INVALID_VALUE for a pid that is no CUDA
    process, CUDA_ERROR_ILLEGAL_STATE for one in the wrong state.
    """

    def __init__(self, driver: CudaDriver, pid: int) -> None:
        self._driver = driver
        self.pid = pid

    def state(self) -> ProcessState:
        """Where in the cycle of states it is. Says RUNNING for some processes that never used CUDA: use
        `restore_thread_id` to find out whether one does."""
        value = ctypes.c_int(-1)
        self._driver.call("cuCheckpointProcessGetState", self.pid, ctypes.byref(value))
        try:
            return ProcessState(value.value)
        except ValueError:
            raise CudaError("cuCheckpointProcessGetState", 0, f"unknown state {value.value}") from None

    def restore_thread_id(self) -> int:
        """The thread that does the work in the target; exists in CUDA processes only."""
        value = ctypes.c_int(0)
        self._driver.call("cuCheckpointProcessGetRestoreThreadId", self.pid, ctypes.byref(value))
        return value.value

    def lock(self, timeout_seconds: float) -> None:
        """RUNNING -> LOCKED: further CUDA calls of the process block, running work is waited for.

        At the timeout: CudaError with code NOT_READY, and the process stays RUNNING.
        """
        milliseconds = max(1, min(int(timeout_seconds * 1000), 2**32 - 1))  # 0 would wait for ever
        args = _LockArgs(timeout_ms=milliseconds)
        self._driver.call("cuCheckpointProcessLock", self.pid, ctypes.byref(args))

    def checkpoint(self) -> None:
        """LOCKED -> CHECKPOINTED: GPU memory moves to host memory, and the GPUs are released."""
        self._driver.call("cuCheckpointProcessCheckpoint", self.pid, ctypes.byref(_CheckpointArgs()))

    def restore(self, gpu_map: Mapping[str, str] | None = None) -> None:
        """CHECKPOINTED -> LOCKED, with the memory back on the GPUs, or on those that `gpu_map` names.

        `gpu_map` maps every checkpointed GPU's UUID to the one that takes its place (driver >= 580, same
        type). The memory must be free: a restore that runs out of it kills the process.
        """
        args = _RestoreArgs()
        pairs = None
        if gpu_map:
            pairs = (_GpuPair * len(gpu_map))()
            for pair, (old, new) in zip(pairs, gpu_map.items(), strict=True):
                ctypes.memmove(pair.old_uuid.bytes, parse_uuid(old), 16)
                ctypes.memmove(pair.new_uuid.bytes, parse_uuid(new), 16)
            args.gpu_pairs = ctypes.cast(pairs, ctypes.POINTER(_GpuPair))
            args.gpu_pairs_count = len(gpu_map)
        self._driver.call("cuCheckpointProcessRestore", self.pid, ctypes.byref(args))
        del pairs

    def unlock(self) -> None:
        """LOCKED -> RUNNING."""
        self._driver.call("cuCheckpointProcessUnlock", self.pid, ctypes.byref(_UnlockArgs()))
