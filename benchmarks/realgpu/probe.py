# SPDX-License-Identifier: GPL-2.0-or-later
"""Small programs on the CUDA driver alone: who is listed by NVML, and how fast the link to the host is.

python3 -m benchmarks.realgpu.probe hold context     be a process in that state until the input ends
python3 -m benchmarks.realgpu.probe link             JSON: bytes per second, by direction and memory
python3 -m benchmarks.realgpu.probe touch BYTES      use so much host memory once, then give it back
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples import mockcuda

MIB = 1 << 20
CHUNK_BYTES = 256 * MIB
"""The unit in which the job's side takes host memory."""
HOLD = ("cuinit", "count", "fork", "context", "torch-count", "torch-properties")


def hold(what: str) -> None:
    """Get into a state, say so with the pids that are in it, and stay until the input ends."""
    pids = [os.getpid()]
    if what.startswith("torch"):
        import torch

        if torch.cuda.device_count() < 1:
            raise RuntimeError("PyTorch sees no GPU")
        if what == "torch-properties":
            torch.cuda.get_device_properties(0)
    else:
        mockcuda.init()
        if what == "count":
            mockcuda.device_count()
        elif what == "context":
            _keep(mockcuda.Context(0))
        elif what == "fork":
            _keep(mockcuda.Context(0))
            child = os.fork()
            if child == 0:
                sys.stdin.read()
                os._exit(0)
            pids.append(child)
    print(json.dumps(pids), flush=True)
    sys.stdin.read()


_KEPT: list[mockcuda.Context] = []


def _keep(context: mockcuda.Context) -> None:
    _KEPT.append(context)


def link(chunk_bytes: int, repeats: int, quick: bool) -> dict[str, float]:
    """Bytes per second. The best of all is the ceiling for every copy of a switch."""
    context = mockcuda.Context(_first_device())
    library = mockcuda.library()
    device = context.alloc(chunk_bytes)
    context.fill(device, 1, chunk_bytes)
    found: dict[str, float] = {}

    pinned = ctypes.c_void_p()
    mockcuda.check("cuMemAllocHost_v2", library.cuMemAllocHost_v2(ctypes.byref(pinned), chunk_bytes))
    kinds: list[tuple[str, ctypes.c_void_p]] = [("pinned", pinned)]
    pageable = _memory(chunk_bytes)
    kinds += [] if quick else [("pageable", ctypes.c_void_p(_address(pageable)))]
    for kind, host in kinds:
        ctypes.memset(host, 1, chunk_bytes)
        calls: tuple[tuple[str, Callable[[], int]], ...] = (
            (f"{kind}_to_host", lambda h=host: library.cuMemcpyDtoH_v2(h, device, chunk_bytes)),  # type: ignore[misc]
            (f"{kind}_to_gpu", lambda h=host: library.cuMemcpyHtoD_v2(device, h, chunk_bytes)),  # type: ignore[misc]
        )
        for name, call in calls:
            mockcuda.check(name, call())
            begin = time.perf_counter()
            for _ in range(repeats):
                mockcuda.check(name, call())
            context.synchronize()
            found[name] = repeats * chunk_bytes / (time.perf_counter() - begin)
    if not quick:
        found["pin_alloc"] = _pin_rate(chunk_bytes, repeats)
        for threads in (1, 4, 16):
            rate = _register_rate(chunk_bytes, repeats, threads)
            if rate is not None:
                found[f"touch_and_register_{threads}"] = rate
    mockcuda.check("cuMemFreeHost", library.cuMemFreeHost(pinned))
    context.destroy()
    return found


def _first_device() -> int:
    mockcuda.init()
    return 0


def _memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _pin_rate(chunk_bytes: int, chunks: int) -> float:
    """Fresh pinned memory from the driver, chunk by chunk."""
    library, taken = mockcuda.library(), []
    begin = time.perf_counter()
    for _ in range(chunks):
        host = ctypes.c_void_p()
        mockcuda.check("cuMemAllocHost_v2", library.cuMemAllocHost_v2(ctypes.byref(host), chunk_bytes))
        taken.append(host)
    rate = chunks * chunk_bytes / (time.perf_counter() - begin)
    for host in taken:
        mockcuda.check("cuMemFreeHost", library.cuMemFreeHost(host))
    return rate


def _register_rate(chunk_bytes: int, chunks: int, threads: int) -> float | None:
    """Memory of our own, touched by several threads and then registered; None where the driver cannot."""
    library = mockcuda.library()
    if not hasattr(library, "cuMemHostRegister_v2"):
        return None
    nbytes = chunks * chunk_bytes
    memory = _memory(nbytes)
    start, part = _address(memory), nbytes // threads
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda n: ctypes.memset(start + n * part, 0, part), range(threads)))
    register = library.cuMemHostRegister_v2
    register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    mockcuda.check("cuMemHostRegister_v2", register(start, nbytes, 0))
    rate = nbytes / (time.perf_counter() - begin)
    library.cuMemHostUnregister.argtypes = [ctypes.c_void_p]
    mockcuda.check("cuMemHostUnregister", library.cuMemHostUnregister(start))
    return rate


def touch(nbytes: int) -> None:
    """Some virtual machines get their memory as they use it. The kernel kills this process first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    step = 1 << 30
    memory = []
    for _ in range(-(-nbytes // step)):
        memory.append(_memory(step))
        ctypes.memset(_address(memory[-1]), 1, step)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("hold").add_argument("what", choices=HOLD)
    measure = verbs.add_parser("link")
    measure.add_argument("--quick", action="store_true", help="pinned memory only")
    measure.add_argument("--chunk-mib", type=int, default=CHUNK_BYTES // MIB)
    measure.add_argument("--repeats", type=int, default=16)
    verbs.add_parser("touch").add_argument("bytes", type=int)
    options = parser.parse_args()
    if options.verb == "hold":
        hold(options.what)
    elif options.verb == "touch":
        touch(options.bytes)
    else:
        print(json.dumps(link(options.chunk_mib * MIB, options.repeats, options.quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
