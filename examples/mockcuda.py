# SPDX-License-Identifier: MIT
"""The CUDA driver API through ctypes: just what the sample training job needs.

Only documented calls with their documented signatures are used, so nothing here knows whether
``libcuda.so.1`` is NVIDIA's or the mini cluster's mock; only the mock's two kernels (``mock_spin``,
``mock_step``), memory that stands for more, and communicators exist nowhere else.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

CUDA_SUCCESS = 0
CUDA_ERROR_INVALID_VALUE = 1
CUDA_ERROR_OUT_OF_MEMORY = 2
CUDA_ERROR_NOT_INITIALIZED = 3
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_OPERATING_SYSTEM = 304
CUDA_ERROR_ILLEGAL_STATE = 401
CUDA_ERROR_NOT_READY = 600
CUDA_ERROR_TIMEOUT = 909

CU_PROCESS_STATE = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")


class CudaError(RuntimeError):
    """A driver call that did not return CUDA_SUCCESS."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call = call
        self.code = code


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


class _LockArgs(ctypes.Structure):
    _fields_ = [
        ("timeoutMs", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    ]


class _GpuPair(ctypes.Structure):
    _fields_ = [("oldUuid", _Uuid), ("newUuid", _Uuid)]


class _RestoreArgs(ctypes.Structure):
    _fields_ = [
        ("gpuPairs", ctypes.POINTER(_GpuPair)),
        ("gpuPairsCount", ctypes.c_uint),
        ("reserved", ctypes.c_char * 52),
    ]


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """libcuda.so.1, loaded once; LD_LIBRARY_PATH says which."""
    global _library
    if _library is None:
        lib = ctypes.CDLL("libcuda.so.1")
        size, pointer, uint = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint
        address = ctypes.c_ulonglong  # CUdeviceptr
        lib.cuMemAlloc_v2.argtypes = [ctypes.POINTER(address), size]
        lib.cuMemFree_v2.argtypes = [address]
        lib.cuMemcpyHtoD_v2.argtypes = [address, pointer, size]
        lib.cuMemcpyDtoH_v2.argtypes = [pointer, address, size]
        lib.cuMemsetD8_v2.argtypes = [address, ctypes.c_ubyte, size]
        lib.cuCtxSetCurrent.argtypes = [pointer]
        lib.cuCtxDestroy_v2.argtypes = [pointer]
        lib.cuMemAllocHost_v2.argtypes = [ctypes.POINTER(pointer), size]
        lib.cuMemFreeHost.argtypes = [pointer]
        lib.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
        lib.cuModuleUnload.argtypes = [pointer]
        lib.cuLaunchKernel.argtypes = [pointer, *([uint] * 7), pointer, pointer, pointer]
        _library = lib
    return _library


def check(call: str, code: int) -> None:
    """Raises CudaError unless the call succeeded."""
    if code != CUDA_SUCCESS:
        text = ctypes.c_char_p()
        library().cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(call, code, (text.value or b"unknown error").decode())


def _call(name: str, *arguments: Any) -> None:
    check(name, getattr(library(), name)(*arguments))


def init() -> None:
    """cuInit. Raises CudaError(CUDA_ERROR_NO_DEVICE) where no GPU is visible."""
    _call("cuInit", 0)


def device_count() -> int:
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def device_name(device: int) -> str:
    name = ctypes.create_string_buffer(256)
    _call("cuDeviceGetName", name, len(name), device)
    return name.value.decode()


def device_uuid(device: int) -> str:
    """As NVML and nvidia-smi write it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx."""
    uuid = _Uuid()
    _call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
    text = bytes(uuid.bytes).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Context:
    """A CUDA context on one device, the memory in it and the two mock kernels.

    Every method makes the context current first, so one thread can work with several.
    """

    def __init__(self, device: int) -> None:
        handle = ctypes.c_void_p()
        _call("cuCtxCreate_v2", ctypes.byref(handle), 0, device)
        self.device = device
        self._handle: ctypes.c_void_p | None = handle
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _enter(self) -> None:
        if self._handle is None:
            raise CudaError("cuCtxSetCurrent", 201, "CUDA_ERROR_INVALID_CONTEXT")
        _call("cuCtxSetCurrent", self._handle)

    def destroy(self) -> None:
        """Gives back the context with all memory in it."""
        if self._handle is not None:
            self._enter()
            _call("cuCtxDestroy_v2", self._handle)
            self._handle = None

    def synchronize(self) -> None:
        self._enter()
        _call("cuCtxSynchronize")

    def memory_info(self) -> tuple[int, int]:
        """(free bytes, total bytes) of the device, for all processes together."""
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alloc(self, size: int, stands_for: int | None = None) -> int:
        """The device address of fresh memory. On mock GPUs it may stand for more than it is: so much is then
        in use on the GPU, and copying takes the time of so much."""
        self._enter()
        address = ctypes.c_ulonglong()
        if stands_for is None:
            _call("cuMemAlloc_v2", ctypes.byref(address), size)
        else:
            amount = (ctypes.c_size_t(size), ctypes.c_uint64(stands_for))
            _call("mockMemAlloc", ctypes.byref(address), *amount)
        return address.value

    def create_communicator(self) -> None:
        """Mock GPUs only: take what an NCCL communicator takes. The driver cannot checkpoint it."""
        self._enter()
        _call("mockCommunicatorCreate")

    def destroy_communicator(self) -> None:
        self._enter()
        _call("mockCommunicatorDestroy")

    def free(self, address: int) -> None:
        self._enter()
        _call("cuMemFree_v2", address)

    def fill(self, address: int, value: int, size: int) -> None:
        self._enter()
        _call("cuMemsetD8_v2", address, value, size)

    def copy_in(self, address: int, data: bytes | bytearray) -> None:
        """Host to device."""
        self._enter()
        view = (ctypes.c_char * len(data)).from_buffer_copy(data)
        _call("cuMemcpyHtoD_v2", address, view, len(data))

    def copy_out(self, address: int, size: int) -> bytes:
        """Device to host."""
        self._enter()
        buffer = ctypes.create_string_buffer(size)
        _call("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def _launch(self, name: str, *parameters: Any) -> None:
        self._enter()
        if name not in self._functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            _call("cuModuleLoadData", ctypes.byref(module), b"mock image")
            _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self._functions[name] = function
        array = (ctypes.c_void_p * len(parameters))(
            *(ctypes.cast(ctypes.pointer(p), ctypes.c_void_p) for p in parameters)
        )
        _call("cuLaunchKernel", self._functions[name], 1, 1, 1, 32, 1, 1, 0, None, array, None)

    def spin(self, microseconds: int, share_percent: int) -> None:
        """Starts a kernel that only takes time, using this share of the GPU."""
        self._launch("mock_spin", ctypes.c_uint(microseconds), ctypes.c_uint(share_percent))

    def step(self, microseconds: int, share_percent: int, address: int, size: int, seed: int) -> None:
        """Starts a kernel that takes time and transforms a buffer, depending on its contents and the seed."""
        self._launch(
            "mock_step",
            ctypes.c_uint(microseconds),
            ctypes.c_uint(share_percent),
            ctypes.c_ulonglong(address),
            ctypes.c_uint64(size),
            ctypes.c_uint64(seed & 0xFFFFFFFFFFFFFFFF),
        )


def checkpoint_state(pid: int) -> str:
    """running, locked, checkpointed or failed."""
    state = ctypes.c_int()
    _call("cuCheckpointProcessGetState", pid, ctypes.byref(state))
    return CU_PROCESS_STATE[state.value]


def checkpoint_restore_thread(pid: int) -> int:
    tid = ctypes.c_int()
    _call("cuCheckpointProcessGetRestoreThreadId", pid, ctypes.byref(tid))
    return tid.value


def checkpoint_lock(pid: int, timeout_ms: int) -> None:
    """Raises CudaError(CUDA_ERROR_NOT_READY) at the time-out; the process then runs on."""
    _call("cuCheckpointProcessLock", pid, ctypes.byref(_LockArgs(timeoutMs=timeout_ms)))


def checkpoint_save(pid: int) -> None:
    """Moves a locked process's device memory to the host."""
    _call("cuCheckpointProcessCheckpoint", pid, None)


def _uuid(text: str) -> _Uuid:
    raw = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
    return _Uuid((ctypes.c_ubyte * 16)(*raw))


def checkpoint_restore(pid: int, moves: dict[str, str] | None = None) -> None:
    """Brings a checkpointed process back; moves maps the UUIDs of all its visible GPUs, old to new."""
    if not moves:
        _call("cuCheckpointProcessRestore", pid, None)
        return
    pairs = (_GpuPair * len(moves))(*(_GpuPair(_uuid(old), _uuid(new)) for old, new in moves.items()))
    arguments = _RestoreArgs(gpuPairs=pairs, gpuPairsCount=len(moves))
    _call("cuCheckpointProcessRestore", pid, ctypes.byref(arguments))


def checkpoint_unlock(pid: int) -> None:
    _call("cuCheckpointProcessUnlock", pid, None)


if __name__ == "__main__":
    init()
    for ordinal in range(device_count()):
        print(ordinal, device_name(ordinal), device_uuid(ordinal), f"pid {os.getpid()}")
