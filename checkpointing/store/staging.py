# SPDX-License-Identifier: MIT
"""Memory for what is to be written: of the process, or of a node-local tmpfs.

A file on tmpfs has no name here, so that nothing is left there when the process ends, however it ends.
"""

from __future__ import annotations

import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path

from .files import LARGE_BYTES, Files, closing

_log = logging.getLogger("gandiva.checkpoint")
_SPARE_FRACTION = 0.1


def buffer(size_bytes: int, staging: Path | None = None) -> memoryview:
    """A writable buffer of this many bytes, on the file system `staging` where it has room.

    A tenth of that file system stays free, for what else needs it. Without room, or without such a file
    system, the buffer is memory of the process; the log says so.
    """
    if staging is not None and size_bytes:
        try:
            return _staged(size_bytes, staging)
        except OSError as error:
            _log.warning("%s cannot take %d bytes: %s; they stay in the process", staging, size_bytes, error)
    if size_bytes < LARGE_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(new_memory(size_bytes))[:size_bytes]


def new_memory(size_bytes: int) -> mmap.mmap:
    """One page or more, whole, of the process's own memory. The kernel clears each when it is first used."""
    # Private: huge pages are off for shared memory on most systems.
    pages = max(1, -(-size_bytes // mmap.PAGESIZE))
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # Fewer and larger pages, where the kernel has them: a fraction of the time.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _staged(size_bytes: int, staging: Path) -> memoryview:
    with closing(os.open(staging, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as fd:
        room = os.fstatvfs(fd)
        free = (room.f_bavail - _SPARE_FRACTION * room.f_blocks) * room.f_frsize
        if free < size_bytes:
            raise OSError(f"only {max(0, int(free))} bytes are to be had")
        os.ftruncate(fd, size_bytes)
        # Taken now: later a full file system would be a SIGBUS.
        Files().reserve(fd, size_bytes)
        return memoryview(mmap.mmap(fd, size_bytes))
