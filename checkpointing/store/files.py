# SPDX-License-Identifier: MIT
"""The calls on files that the store makes.

Every call names a file by an open folder and a plain name, and follows no symbolic link: the folders belong
to a user, who may change them at any time. `Files` has the calls that change something, so that a test can
put others in their place.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

GPFS_MAGIC = 0x47504653
CHUNK_BYTES = 32 << 20
MOST_CHUNK_BYTES = 64 << 20
LARGE_BYTES = 8 << 20
"""Files and memory from this size on are worth more calls."""
BLOCK_BYTES = 4096
"""What passes the page cache by begins and ends at a multiple of this, or of less."""
_DEPTH = 8
_SYNC_FILE_RANGE_WRITE = 2
"""sync_file_range(2): begin, and wait for nothing."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Files:
    """The calls that change the file system. Each raises OSError."""

    def make_folder(self, name: str, at: int) -> None:
        os.mkdir(name, dir_fd=at)

    def create(self, name: str, at: int) -> int:
        """A new file, open for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o666, dir_fd=at)

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Take the space of a file before it is written: ENOSPC and EDQUOT come here and not half-way.

        A file system that cannot do it is left alone. Unlike posix_fallocate(3) this writes no zeros there.
        """
        call = getattr(_libc, "fallocate64", None) or _libc.fallocate
        zero = ctypes.c_int64(0)
        while size_bytes and call(ctypes.c_int(fd), ctypes.c_int(0), zero, ctypes.c_int64(size_bytes)) != 0:
            code = ctypes.get_errno()
            if code == errno.EINTR:
                continue
            if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return
            raise OSError(code, os.strerror(code))

    def write(self, fd: int, data: memoryview) -> int:
        """Bytes that were written, at least one."""
        return direct_or_not(fd, lambda: os.write(fd, data))

    def begin_sync(self, fd: int, begin: int, size_bytes: int) -> None:
        """Have this part of a file go to the disk while others are written. Only a hint: `sync` waits for all
        of it. A file system that cannot do it is left alone."""
        call = getattr(_libc, "sync_file_range", None)
        if call is not None:
            place = (ctypes.c_int64(begin), ctypes.c_int64(size_bytes))
            call(ctypes.c_int(fd), *place, ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))

    def sync(self, fd: int) -> None:
        """A file's content, or a folder's names, onto the disk."""
        os.fsync(fd)

    def rename(self, old: str, new: str, at: int) -> None:
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=at)

    def remove_file(self, name: str, at: int) -> None:
        os.unlink(name, dir_fd=at)

    def remove_folder(self, name: str, at: int) -> None:
        os.rmdir(name, dir_fd=at)


def write_all(files: Files, fd: int, data: memoryview) -> None:
    while data:
        data = data[files.write(fd, data) :]


def write_small(files: Files, name: str, at: int, data: bytes) -> None:
    """A whole new file, on the disk when this returns; its name is not yet."""
    with closing(files.create(name, at)) as fd:
        write_all(files, fd, memoryview(data))
        files.sync(fd)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def set_direct(fd: int, direct: bool) -> bool:
    """Have reading and writing pass the page cache by, or not. False: this file system cannot do it."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (os.O_DIRECT if direct else 0))
    except OSError:
        return False
    return True


def direct_or_not(fd: int, call: Callable[[], int]) -> int:
    """Read or write. What cannot pass the page cache by, as memory at an odd place, goes through it, and so
    does all that follows in this file."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.EINVAL or not set_direct(fd, False):
            raise
    return call()


def open_folder(name: str, at: int) -> int:
    """Raises OSError; ENOTDIR or ELOOP where it is something else."""
    return os.open(name, _FOLDER, dir_fd=at)


def open_regular(name: str, at: int) -> int:
    """A regular file for reading. Raises OSError; nothing else is opened for good, and no pipe blocks."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return fd


def read_small(name: str, at: int, most_bytes: int) -> bytes:
    """All of a file. Raises OSError; EFBIG where it is larger than `most_bytes`."""
    with closing(open_regular(name, at)) as fd:
        found = bytearray()
        while len(found) <= most_bytes:
            part = os.read(fd, min(1 << 20, most_bytes + 1 - len(found)))
            if not part:
                return bytes(found)
            found += part
    raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", name)


def names(at: int) -> list[str]:
    """What is in an open folder, sorted."""
    return sorted(os.listdir(at))


def exists(name: str, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def remove_tree(files: Files, name: str, at: int, depth: int = _DEPTH) -> None:
    """Remove a file, or a folder with all that is in it. What is gone already is no error.

    Raises OSError; ELOOP where folders are nested deeper than any that the store makes.
    """
    try:
        fd = open_folder(name, at)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        _ignore_missing(files.remove_file, name, at)
        return
    with closing(fd):
        if depth == 0:
            raise OSError(errno.ELOOP, "folders are nested too deep", name)
        for child in names(fd):
            remove_tree(files, child, fd, depth - 1)
    _ignore_missing(files.remove_folder, name, at)


def _ignore_missing(call: Callable[[str, int], None], name: str, at: int) -> None:
    with suppress(FileNotFoundError):
        call(name, at)


def lock(fd: int, shared: bool = False) -> bool:
    """Lock an open file, alone or with others that share it; the lock goes with the process. False: another
    one has it.

    Raises OSError where the file system has no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_gpfs(fd: int) -> bool:
    """Whether a file lies on GPFS (IBM Storage Scale), by the magic number of fstatfs(2)."""
    buffer = (ctypes.c_ulong * 64)()  # Its first field, a long, is f_type on all 64-bit Linux but s390.
    if _libc.fstatfs(ctypes.c_int(fd), ctypes.byref(buffer)) != 0:
        return False
    return buffer[0] & 0xFFFFFFFF == GPFS_MAGIC


def chunk_bytes(fd: int) -> int:
    """How much to read or write at once: some MiB; on GPFS several whole blocks of the file system."""
    if not is_gpfs(fd):
        return CHUNK_BYTES
    block = max(1, os.fstatvfs(fd).f_bsize)
    return min(MOST_CHUNK_BYTES, -(-max(CHUNK_BYTES, 4 * block) // block) * block)
